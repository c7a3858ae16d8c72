// Where a server is, and a connection to it, non-blocking, closed with the object.
//
// Errors   CheckError for what is not about one connection: a name that is not found, no descriptors left.
#pragma once
#include <string>
#include <string_view>
#include <utility>

namespace quire::bench {

struct Address {
  std::string host, port;
  std::string text() const { return host + ":" + port; }
};
// http://HOST:PORT, and nothing after it. Throws CheckError for other URLs.
Address address_from(const std::string& url);

// Throws CheckError that names the address and the reason when nobody takes a connection there.
void check_reachable(const Address& address);

class Socket {
 public:
  Socket() = default;
  explicit Socket(const Address& address);  // begins to connect
  ~Socket();
  Socket(Socket&& other) noexcept { *this = std::move(other); }
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(error_, other.error_);
    return *this;
  }

  int descriptor() const { return descriptor_; }  // -1: none
  bool is_open() const { return descriptor_ >= 0; }
  const std::string& error() const { return error_; }  // why it could not connect, or broke; "" when it has not

  // Both take or give as much as is possible now. False: the connection is gone.
  bool send(std::string_view& bytes);  // takes off the front what was sent
  bool receive(std::string& bytes);    // appends what there is; at its end too, after the last bytes

 private:
  bool goes_on();  // after a call that failed

  int descriptor_ = -1;
  std::string error_ = {};
};

}  // namespace quire::bench
