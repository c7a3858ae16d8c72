#include "http/server_core.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "http/connection.h"

namespace quire::http {

void ServerCore::post(const Strand& strand, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (door_open_) boost::asio::post(strand, std::move(task));
}

bool ServerCore::admit(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  if (!door_open_ || static_cast<int>(open_.size()) >= limits.connections) return false;
  int& of_peer = of_peer_[connection->network()];
  if (of_peer >= limits.peer_connections) return false;
  ++of_peer;
  open_.emplace(connection.get(), connection);
  return true;
}

void ServerCore::remove(const Connection* connection) {
  const std::lock_guard lock(mutex_);
  if (open_.erase(connection) == 0) return;
  const auto peer = of_peer_.find(connection->network());
  if (--peer->second == 0) of_peer_.erase(peer);
}

void ServerCore::close_door() {
  const std::lock_guard lock(mutex_);
  door_open_ = false;
}

std::vector<std::shared_ptr<Connection>> ServerCore::connections() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Connection>> connections;
  for (const auto& [address, connection] : open_)
    if (auto alive = connection.lock()) connections.push_back(std::move(alive));
  return connections;
}

std::unique_ptr<Stream> ServerCore::stream(int socket) const {
  const std::lock_guard lock(mutex_);
  return tls_ ? tls_->stream(socket) : plain_stream(socket);
}

void ServerCore::set_tls(const TlsContext& context) {
  const std::lock_guard lock(mutex_);
  tls_ = context;
}

int ServerCore::connection_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(open_.size());
}

}  // namespace quire::http
