// An HTTP/1.1 server, with TLS if asked: sockets in, exchanges out. Knows nothing of what is served.
//
// Connections are kept alive and cost little while idle: no buffer is held between requests. A client that leaves
// while its request is being worked on is noticed at once. Slow readers cost memory up to a limit and no time. Requests
// on one connection are answered in order, one at a time.
//
// Refused, with an answer where the protocol allows one: anything but HTTP/1.0 and 1.1 (the preface of HTTP/2 is closed
// without a word in the log), heads, bodies and header counts over the limits (431, 413; 503 for all bodies together),
// lengths that are not plain digits, both Content-Length and Transfer-Encoding, more connections than the limit (closed
// at once), plain HTTP where TLS is spoken. What can be refused by its head is refused before its body comes.
//
// Errors   the constructor throws CheckError, one line: an address that cannot be bound, certificate files that cannot
//          be used. Nothing that a client sends ends the server.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "http/exchange.h"

namespace quire::http {

struct Limits {
  size_t head_bytes = 16 << 10;  // request line and headers
  size_t body_bytes = 32 << 20;
  size_t all_body_bytes = 512 << 20;   // of all requests that are being received or answered; past it 503
  size_t peer_body_bytes = 128 << 20;  // of those, from one peer (peer.h)
  int connections = 8192;
  int peer_connections = 4096;           // of those, from one peer
  size_t unsent_bytes = 4 << 20;         // of a stream that its client does not read; past it the connection is cut
  size_t all_unsent_bytes = 1 << 30;     // of all answers, however long each is; whose does not fit is cut
  size_t peer_unsent_bytes = 512 << 20;  // of those, to one peer
  std::chrono::seconds idle{75};         // between requests
  std::chrono::seconds read{30};         // for a head
  std::chrono::seconds body{10};         // in each such time a body brings this many bytes more, or its end; else 408
  size_t body_progress_bytes = 64 << 10;
  std::chrono::seconds write{30};  // without any progress while something is to be sent
  std::chrono::seconds drain{2};   // after stop_accepting(), for what is still being received
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int threads = 1;
  Limits limits = {};
  std::string certificate_file = {}, key_file = {}, key_password = {};  // PEM; empty: plain HTTP
};

// Asked when a request's head is there and nothing of its body was kept: how many bytes the body may have. None: the
// handler refuses this request whatever its body, so it gets it at once, without one.
using Judge = std::function<std::optional<size_t>(const Request& head)>;

// What the server answered without its handler: what is no request, is too large or does not arrive.
struct Refused {
  std::string peer, id;
  std::string method, path;  // "" where the head was not read
  int status;
  std::string reason;
};
struct Hooks {                                          // on io threads
  Judge judge = {};                                     // without one, all bodies up to the limit
  std::function<void(const Refused&)> on_refused = {};  // for logs
};

struct ServerStats {
  int connections;    // open now
  int64_t accepted;   // so far
  int64_t requests;   // so far
  size_t body_bytes;  // of requests that are being received or answered
  int64_t cut_slow;   // connections cut because their client did not read
};

class Server {
 public:
  Server(const ServerOptions& options, Handler handler, Hooks hooks = {});  // bound; takes connections after start()
  ~Server();                                                                // stop()

  uint16_t port() const;
  ServerStats stats() const;
  void start();
  // The files named in the options, read again: for connections from now on. Throws CheckError, one line, and goes on
  // with what it had. Nothing without TLS. From any thread.
  void reload_certificate();
  void stop_accepting();  // idle connections close, others after their answer, or soon if none is asked for
  void stop();            // closes everything and joins the threads; idempotent; never from a handler

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::http
