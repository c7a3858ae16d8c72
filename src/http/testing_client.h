// A client for tests, on a blocking socket: sends exactly the bytes it is told to, and reads answers strictly.
//
// Errors   what does not come within ten seconds, or is no HTTP answer, throws CheckError.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

struct ssl_st;

namespace quire::http {

struct ClientAnswer {
  int status = 0;
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};

  std::string header(const std::string& name) const;
};

class TestingClient {
 public:
  enum class Speaks { plain, tls };
  explicit TestingClient(uint16_t port, Speaks speaks = Speaks::plain, int receive_buffer = 0);
  static TestingClient on_ipv6(uint16_t port);
  static TestingClient from(const char* address, uint16_t port);  // of this machine, as 127.0.0.2
  ~TestingClient();
  TestingClient(TestingClient&& other) noexcept;

  void offer_only(const char* suites);  // of TLS 1.2, and no later version; before the handshake
  bool shakes_hands();                  // TLS only, before anything else; false: refused
  std::string certificate() const;      // the server's, as bytes
  void send(std::string_view bytes);
  std::string read_until(std::string_view end);  // up to and including it; what came after is kept
  std::string read_count(size_t count);
  std::string read_some();    // what the system has, in one call
  std::string read_to_end();  // until the server closes, cleanly or not
  ClientAnswer read_answer(bool of_head = false);
  ClientAnswer get(std::string_view path);  // one request on the open connection
  bool is_closed();                         // waits for it; false when bytes come instead

  void forget_tls();  // frees its memory without a word to the server; nothing can be sent or read any more
  void close();
  void reset();  // the server sees a reset, not an end

 private:
  TestingClient(Speaks speaks, int socket);
  size_t receive(char* into, size_t size);
  bool read_more();
  std::string read_chunks();

  int socket_ = -1;
  std::shared_ptr<ssl_st> tls_;
  std::string received_;
};

}  // namespace quire::http
