// Bytes to one request, in pieces of any size: Beast's parser for the grammar, read_head() for what it lets pass.
//
// What comes out does not depend on how the bytes were cut into pieces. A head is looked at when it is complete; a
// byte that no head can begin with, a bare line feed and the preface of HTTP/2 are seen as they come.
//
// Between head and body the owner has a say: feed() stops there, and limit_body() may then lower the limit.
//
// Before   feed() only while the state is head or body; take() only when it is body or done.
// Memory   the head or the line being read, up to Limits::head_bytes, and the body, up to Limits::body_bytes: what
//          was received, never what was announced.
// Errors   nothing throws for what a client sends: the state turns `refused`, and refusal() says what to answer.
#pragma once
#include <cstddef>
#include <memory>
#include <string_view>

#include "http/exchange.h"
#include "http/request_head.h"
#include "http/server.h"

namespace quire::http {

class RequestParser {
 public:
  enum class State { head, body, done, refused };

  explicit RequestParser(const Limits& limits);  // head_bytes and body_bytes count
  ~RequestParser();

  // How many of the bytes belong to this request: all, unless its head, or the request, ends (or is refused) before.
  size_t feed(std::string_view bytes);
  // In state `body`, before anything of it was fed: no more than this. A longer one is refused, by its announced length
  // at once.
  void limit_body(size_t most);

  State state() const;
  size_t body_bytes() const;         // received so far; 0 once taken
  const Request& head() const;       // what is known of the request, from state `body` on or when that was refused
  const AnswerTerms& terms() const;  // from state `body` on
  const Refusal& refusal() const;    // in state `refused`
  Request take();                    // with what has come of the body, without the peer

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::http
