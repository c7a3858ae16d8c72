// What the parts of one server share: the event loop, the limits, the counters and the list of open connections.
//
// Connections hold it, and exchanges hold connections, so it lives until the last exchange is let go of, even when the
// server is long gone. Nothing is queued after close_door(): a task in a loop that nobody runs would keep itself alive.
#pragma once
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "http/body_budget.h"
#include "http/exchange.h"
#include "http/server.h"
#include "http/tls.h"

namespace quire::http {

class Connection;
using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;

class ServerCore {
 public:
  ServerCore(const Limits& given_limits, Handler given_handler, Hooks given_hooks)
      : limits(given_limits),
        handler(std::move(given_handler)),
        hooks(std::move(given_hooks)),
        bodies(limits.all_body_bytes, limits.peer_body_bytes),
        unread(limits.all_unsent_bytes, limits.peer_unsent_bytes) {}

  boost::asio::io_context io;
  const Limits limits;
  Handler handler;
  Hooks hooks;
  std::atomic<bool> draining{false};
  BodyBudget bodies;  // of requests that are being received or answered
  BodyBudget unread;  // of answers that their clients have not read yet
  std::atomic<int64_t> accepted{0}, requests{0}, cut_slow{0};

  void post(const Strand& strand, std::function<void()> task);  // dropped once the door is closed
  bool admit(const std::shared_ptr<Connection>& connection);    // false: too many, or the door is closed
  void remove(const Connection* connection);
  void close_door();
  std::vector<std::shared_ptr<Connection>> connections() const;
  int connection_count() const;
  std::unique_ptr<Stream> stream(int socket) const;  // in TLS once there is a context
  void set_tls(const TlsContext& context);

 private:
  mutable std::mutex mutex_;
  bool door_open_ = true;
  std::optional<TlsContext> tls_;
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> open_;
  std::unordered_map<std::string, int> of_peer_;  // open ones by network, none of them 0
};

}  // namespace quire::http
