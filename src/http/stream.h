// A connected socket that never blocks, in plain text or in TLS. It does not own the socket and knows no event loop:
// a call that cannot go on says what it waits for, and is made again when the socket is ready for that.
//
// TLS is done by OpenSSL straight on the socket. Asio's own TLS stream would hold four buffers of 17 KiB for every
// connection, idle or not; this one holds none while nothing moves.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace quire::http {

struct Moved {
  enum class Outcome {
    done,
    wants_read,
    wants_write,
    closed,     // by the client, or broken
    plain_http  // of a handshake: the client speaks HTTP without TLS
  };
  Outcome outcome;
  size_t bytes = 0;  // at least one when a read or a write is done
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual Moved handshake() = 0;  // until it is done, before anything else
  virtual Moved read(std::span<char> into) = 0;
  // A write that could not go on is made again with the same bytes, or more, at any address.
  virtual Moved write(std::string_view bytes) = 0;
  virtual void end_writing() = 0;  // the client sees the end; reading goes on
};

std::unique_ptr<Stream> plain_stream(int socket);

}  // namespace quire::http
