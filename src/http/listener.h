// The bound address, and the loop that takes connections from it.
//
// Errors   the constructor throws CheckError, one line with the address and the reason. Errors of taking a connection
//          (no file descriptors left) pause the loop for a moment and never end it.
#pragma once
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "http/connection.h"
#include "http/server_core.h"

namespace quire::http {

class Listener : public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<ServerCore> core, const std::string& host, uint16_t port);
  uint16_t port() const { return port_; }
  // From any thread.
  void start();
  void close();

 private:
  void accept();
  void welcome(Connection::Socket socket);
  void welcome_the_rest();
  void accept_after_pause();

  const std::shared_ptr<ServerCore> core_;
  Strand strand_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  uint16_t port_ = 0;
};

}  // namespace quire::http
