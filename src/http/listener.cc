#include "http/listener.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "base/check.h"

namespace quire::http {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using Endpoints = std::vector<tcp::endpoint>;

constexpr std::chrono::milliseconds kPause{50};

std::string place(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? cat(host, ":", port) : cat("[", host, "]:", port);
}

Endpoints resolve(boost::asio::io_context& io, const std::string& host, uint16_t port, error_code& error) {
  const auto address = boost::asio::ip::make_address(host, error);
  if (!error) return {{address, port}};
  tcp::resolver resolver(io);
  Endpoints endpoints;
  for (const auto& entry : resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error))
    endpoints.push_back(entry.endpoint());
  return endpoints;
}

// An address that was in use a moment ago may be used again, as after a restart.
void listen(tcp::acceptor& acceptor, const tcp::endpoint& endpoint, error_code& error) {
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  error_code ignored;
  if (error) acceptor.close(ignored);
}

void listen_on_first(tcp::acceptor& acceptor, const Endpoints& endpoints, error_code& error) {
  for (const tcp::endpoint& endpoint : endpoints) {
    listen(acceptor, endpoint, error);
    if (!error) return;
  }
}

}  // namespace

Listener::Listener(std::shared_ptr<ServerCore> core, const std::string& host, uint16_t port)
    : core_(std::move(core)), strand_(core_->io.get_executor()), acceptor_(strand_), pause_(strand_) {
  error_code error;
  listen_on_first(acceptor_, resolve(core_->io, host, port, error), error);
  check(!error, "cannot listen on ", place(host, port), ": ", error.message());
  port_ = acceptor_.local_endpoint().port();
}

void Listener::start() {
  boost::asio::post(strand_, [self = shared_from_this()] { self->accept(); });
}

void Listener::close() {
  boost::asio::post(strand_, [self = shared_from_this()] {
    self->welcome_the_rest();
    error_code ignored;
    self->acceptor_.close(ignored);
    self->pause_.cancel();
  });
}

void Listener::accept() {
  if (!acceptor_.is_open()) return;
  acceptor_.async_accept(Strand(core_->io.get_executor()),
                         [self = shared_from_this()](const error_code& error, Connection::Socket socket) {
                           if (!self->acceptor_.is_open()) return;
                           if (error) return self->accept_after_pause();
                           self->welcome(std::move(socket));
                           self->accept();
                         });
}

void Listener::welcome(Connection::Socket socket) {
  ++core_->accepted;
  error_code error;
  socket.native_non_blocking(true, error);
  if (!error) socket.set_option(tcp::no_delay(true), error);
  if (error) return;  // the client has gone already
  try {
    const auto connection = std::make_shared<Connection>(core_, std::move(socket));
    if (core_->admit(connection)) connection->start();
  } catch (const std::exception&) {
    // No memory for this one; the socket closes itself.
  }
}

// Those that the system has let in, and no more than it lets in at once: closing would reset them, with what they have
// sent.
void Listener::welcome_the_rest() {
  error_code error;
  acceptor_.non_blocking(true, error);
  for (int i = 0; i < tcp::acceptor::max_listen_connections && !error; ++i) {
    Connection::Socket socket(Strand(core_->io.get_executor()));
    acceptor_.accept(socket, error);
    if (!error) welcome(std::move(socket));
  }
}

void Listener::accept_after_pause() {
  pause_.expires_after(kPause);
  pause_.async_wait([self = shared_from_this()](const error_code&) { self->accept(); });
}

}  // namespace quire::http
