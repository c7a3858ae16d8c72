// What a request's head must be like after the grammar has been checked: where requests are smuggled, two readers
// disagree about a head that both accept, so everything doubtful is refused here.
//
// Refused: a length that is not plain digits or is given twice, a length together with a transfer encoding, any
// encoding but "chunked", HTTP/1.1 without exactly one Host, control characters, a target without a path, bad percent
// signs. Nothing but the path is decoded.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace quire::http {

inline constexpr size_t kMostHeaders = 100;

struct Refusal {
  int status;  // 0: close without an answer; this client would not understand one
  std::string message;
};

// What the head asks of the answer.
struct AnswerTerms {
  bool http_1_0 = false;  // no chunks
  bool keep_alive = true;
  bool without_body = false;  // HEAD
  bool expects_continue = false;
};

struct RequestLine {
  std::string method, target;
  int version = 11;  // 10 or 11
};

// The facts of a head whose headers are in request.headers: fills in its method, path and query. A HEAD comes out as
// GET, with `without_body` set: handlers need not know of it.
struct HeadOutcome {
  std::optional<Refusal> refusal;
  AnswerTerms terms;
};
HeadOutcome read_head(const RequestLine& line, Request& request);

}  // namespace quire::http
