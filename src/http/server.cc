#include "http/server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/descriptor_limit.h"
#include "http/connection.h"
#include "http/listener.h"
#include "http/request_parser.h"
#include "http/server_core.h"

namespace quire::http {
namespace {

std::optional<TlsContext> tls_of(const ServerOptions& options) {
  const bool certificate = !options.certificate_file.empty(), key = !options.key_file.empty();
  check(certificate == key, "TLS needs both a certificate file and a key file");
  if (!certificate) return std::nullopt;
  return TlsContext(options.certificate_file, options.key_file, options.key_password);
}

std::shared_ptr<ServerCore> core_of(const ServerOptions& options, Handler handler, Hooks hooks) {
  check(options.threads >= 1, "a server with ", options.threads, " threads");
  check(handler != nullptr, "a server without a handler");
  check(options.limits.connections >= 1, "a server with ", options.limits.connections, " connections");
  const RequestParser refuses_limits_that_hold_no_request(options.limits);
  auto core = std::make_shared<ServerCore>(options.limits, std::move(handler), std::move(hooks));
  if (const auto tls = tls_of(options)) core->set_tls(*tls);
  return core;
}

// Handlers are guarded where they are called; what arrives here is of our own making, like a lack of memory, and one
// connection's trouble should not take the thread away from the others.
void run_loop(boost::asio::io_context& io) {
  while (true) {
    try {
      io.run();
      return;
    } catch (const std::exception&) {
      continue;
    }
  }
}

}  // namespace

struct Server::Impl {
  using WorkGuard = boost::asio::executor_work_guard<boost::asio::io_context::executor_type>;

  ServerOptions options;
  std::shared_ptr<ServerCore> core;
  std::shared_ptr<Listener> listener;
  std::optional<WorkGuard> work;
  std::vector<std::thread> threads = {};
  bool stopped = false;

  void run_here() {
    core->io.restart();
    run_loop(core->io);
  }
};

Server::Server(const ServerOptions& options, Handler handler, Hooks hooks) {
  auto core = core_of(options, std::move(handler), std::move(hooks));
  auto listener = std::make_shared<Listener>(core, options.host, options.port);
  Impl::WorkGuard work(core->io.get_executor());
  impl_ = std::make_unique<Impl>(Impl{options, std::move(core), std::move(listener), std::move(work)});
}

Server::~Server() { stop(); }

uint16_t Server::port() const { return impl_->listener->port(); }

ServerStats Server::stats() const {
  const ServerCore& core = *impl_->core;
  return {core.connection_count(), core.accepted, core.requests, core.bodies.held(), core.cut_slow};
}

void Server::start() {
  check(impl_->threads.empty() && !impl_->stopped, "a server is started twice");
  constexpr int kOthers = 256;  // files and sockets that are no connections
  allow_descriptors(impl_->core->limits.connections + kOthers);
  impl_->listener->start();
  for (int i = 0; i < impl_->options.threads; ++i)
    impl_->threads.emplace_back([core = impl_->core] { run_loop(core->io); });
}

void Server::reload_certificate() {
  if (const auto tls = tls_of(impl_->options)) impl_->core->set_tls(*tls);
}

void Server::stop_accepting() {
  if (impl_->stopped) return;  // nobody runs what would be queued
  impl_->core->draining = true;
  impl_->listener->close();
  for (const auto& connection : impl_->core->connections()) connection->drain();
}

void Server::stop() {
  if (std::exchange(impl_->stopped, true)) return;
  ServerCore& core = *impl_->core;
  core.draining = true;
  core.close_door();
  impl_->listener->close();
  for (const auto& connection : core.connections()) connection->abort();
  impl_->work.reset();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->run_here();  // what is left of a server that was never started
  core.handler = nullptr;
  core.hooks = {};
}

}  // namespace quire::http
