#include "hub/connection.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <vector>

namespace quire::hub {
namespace {

using namespace std::chrono_literals;

// Listens on this machine and has no place left for those who knock: they wait.
class FullListener {
 public:
  FullListener() : sockets_{socket(AF_INET, SOCK_STREAM, 0)} {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    bind(sockets_[0], any, size);
    listen(sockets_[0], 0);
    getsockname(sockets_[0], any, &size);
    port_ = ntohs(address.sin_port);
    for (int i = 0; i < 4; ++i) {
      sockets_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      connect(sockets_.back(), any, size);
    }
  }
  ~FullListener() {
    for (const int descriptor : sockets_) close(descriptor);
  }
  std::string port() const { return std::to_string(port_); }

 private:
  std::vector<int> sockets_;
  int port_ = 0;
};

TEST(HubConnection, ASignalIsNoRefusal) {
  struct sigaction noticed {
  }, before{};
  noticed.sa_handler = [](int) {};
  sigaction(SIGUSR1, &noticed, &before);
  const FullListener listener;
  std::thread signal([caller = pthread_self()] {
    std::this_thread::sleep_for(20ms);
    pthread_kill(caller, SIGUSR1);
  });
  std::string reason;
  try {
    Connection("127.0.0.1", listener.port(), 100ms);
  } catch (const NetworkError& error) {
    reason = error.what();
  }
  signal.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_NE(reason.find("timed out"), reason.npos) << reason;
}

}  // namespace
}  // namespace quire::hub
