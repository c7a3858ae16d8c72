// Bytes to one request, in pieces of any size: Beast's parser for the grammar, read_head() for what it lets pass.
//
// What comes out does not depend on how the bytes were cut into pieces. A head is looked at when it is complete; a
// byte that no head can begin with, a bare line feed and the preface of HTTP/2 are seen as they come.
//
// Before   feed() only while the state is head or body; take() only when it is done.
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

  // How many of the bytes belong to this request: all, unless it is done (or refused) before their end.
  size_t feed(std::string_view bytes);

  State state() const;
  size_t body_bytes() const;         // received so far; 0 once taken
  const AnswerTerms& terms() const;  // from state `body` on
  const Refusal& refusal() const;    // in state `refused`
  Request take();                    // without the peer

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::http
