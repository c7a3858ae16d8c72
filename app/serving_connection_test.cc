#include "serving_connection.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace quire::bench {
namespace {

constexpr std::string_view kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

class Peer {
 public:
  Peer() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&here), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&here), &size), 0);
    address_ = {.host = "127.0.0.1", .port = std::to_string(ntohs(here.sin_port))};
  }
  ~Peer() {
    if (accepted_ >= 0) close(accepted_);
    close(listener_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const Address& address() const { return address_; }
  void accept_and_say(std::string_view bytes) {
    accepted_ = accept(listener_, nullptr, nullptr);
    EXPECT_EQ(send(accepted_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

 private:
  int listener_, accepted_ = -1;
  Address address_ = {};
};

TEST(ServingConnection, WakesNobodyOnceItIsIdle) {
  Peer peer;
  Readiness readiness;
  Connection connection(peer.address(), readiness, 3);
  connection.ask("GET /health HTTP/1.1\r\n\r\n", Connection::Time::clock::now());
  peer.accept_and_say(kAnswer);  // so the first turn both sends and ends
  const auto soon = Connection::Time::clock::now() + std::chrono::seconds(10);
  EXPECT_EQ(readiness.wait(soon), std::vector<size_t>{3});
  EXPECT_TRUE(connection.advance(Connection::Time::clock::now()));
  EXPECT_EQ(connection.failure(), "");
  EXPECT_TRUE(connection.is_open());
  EXPECT_EQ(readiness.wait(Connection::Time::clock::now()), std::vector<size_t>{});
}

}  // namespace
}  // namespace quire::bench
