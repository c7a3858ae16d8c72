// One connection to a server: plain, or TLS with the server's certificate and name checked against the system's
// authorities. Blocks, but never longer than it is told without anything happening.
//
// Errors   NetworkError: no such host, no connection, silence, a connection that breaks.
//          CheckError: a certificate that is not trusted (trying again would not help).
#pragma once
#include <openssl/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "hub/errors.h"

struct addrinfo;

namespace quire::hub {

// The system's authorities: loaded once, shared by connections. SSL_CERT_FILE and SSL_CERT_DIR name others.
std::shared_ptr<SSL_CTX> trusted_authorities();

class Connection {
 public:
  Connection(const std::string& host, const std::string& port, std::chrono::milliseconds silence);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // From here on everything is encrypted, and the other side has shown that it is `host`.
  void start_tls(const std::string& host, const std::shared_ptr<SSL_CTX>& authorities);

  void write(std::string_view bytes);
  size_t read(std::span<char> bytes);  // 0: the other side has ended

 private:
  void open(const std::string& port);
  bool connect_to(const addrinfo& address);
  size_t write_some(std::string_view bytes);
  std::optional<size_t> read_tls(std::span<char> bytes);
  std::optional<size_t> read_plain(std::span<char> bytes);
  void wait_for(short events);
  void wait_for_tls(int result, const char* doing);

  const std::string host_;
  const std::chrono::milliseconds silence_;
  int descriptor_ = -1;
  std::shared_ptr<SSL_CTX> authorities_;
  std::unique_ptr<SSL, void (*)(SSL*)> tls_;
};

}  // namespace quire::hub
