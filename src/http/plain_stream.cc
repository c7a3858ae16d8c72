#include <sys/socket.h>

#include <cerrno>

#include "http/stream.h"

namespace quire::http {
namespace {

using Outcome = Moved::Outcome;

Moved moved(ssize_t count, Outcome when_blocked) {
  if (count > 0) return {Outcome::done, static_cast<size_t>(count)};
  const bool blocked = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return {blocked ? when_blocked : Outcome::closed};
}

class PlainStream final : public Stream {
 public:
  explicit PlainStream(int socket) : socket_(socket) {}
  Moved handshake() override { return {Outcome::done}; }
  Moved read(std::span<char> into) override {
    return moved(::recv(socket_, into.data(), into.size(), 0), Outcome::wants_read);
  }
  Moved write(std::string_view bytes) override {
    return moved(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), Outcome::wants_write);
  }
  void end_writing() override { ::shutdown(socket_, SHUT_WR); }

 private:
  int socket_;
};

}  // namespace

std::unique_ptr<Stream> plain_stream(int socket) { return std::make_unique<PlainStream>(socket); }

}  // namespace quire::http
