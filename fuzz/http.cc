// A connection's bytes from anywhere: requests one after the other, whatever pieces the bytes come in.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz.h"
#include "http/request_parser.h"

using namespace quire;
using http::RequestParser;

namespace {

struct Outcome {  // of one request
  RequestParser::State state;
  int refused_with;
  std::string method, path, query, body;
  http::Headers headers;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome outcome_of(RequestParser& parser) {
  Outcome outcome{
      .state = parser.state(), .refused_with = 0, .method = {}, .path = {}, .query = {}, .body = {}, .headers = {}};
  if (outcome.state == RequestParser::State::refused) outcome.refused_with = parser.refusal().status;
  if (outcome.state != RequestParser::State::done) return outcome;
  http::Request request = parser.take();
  outcome.method = std::move(request.method);
  outcome.path = std::move(request.path);
  outcome.query = std::move(request.query);
  outcome.body = std::move(request.body);
  outcome.headers = std::move(request.headers);
  return outcome;
}

bool wants_more(const RequestParser& parser) {
  return parser.state() == RequestParser::State::head || parser.state() == RequestParser::State::body;
}

// The pieces' lengths are those of `cut`, again and again.
std::vector<Outcome> outcomes_of(std::string_view bytes, std::string_view cut) {
  constexpr size_t kMostBody = 1 << 11;  // by its head, which is judged when it is there
  const http::Limits limits{.head_bytes = 1 << 10, .body_bytes = 1 << 12};
  std::vector<Outcome> outcomes;
  for (size_t piece = 0; !bytes.empty();) {
    RequestParser parser(limits);
    while (wants_more(parser) && !bytes.empty()) {
      const size_t most = cut.empty() ? bytes.size() : 1 + static_cast<uint8_t>(cut[piece++ % cut.size()]) % 97;
      const std::string copy(bytes.substr(0, most));  // so that a read past the piece is seen
      const RequestParser::State before = parser.state();
      const size_t taken = parser.feed(copy);
      const bool head_ended = before == RequestParser::State::head && parser.state() == RequestParser::State::body;
      fuzz::promise(taken <= copy.size(), "no more is taken than was fed");
      fuzz::promise(taken == copy.size() || head_ended || !wants_more(parser), "what is not done takes everything");
      if (head_ended) parser.limit_body(kMostBody);
      bytes.remove_prefix(taken);
    }
    outcomes.push_back(outcome_of(parser));
    if (outcomes.back().state != RequestParser::State::done) break;
    fuzz::promise(outcomes.back().body.size() <= kMostBody, "a body has its limit");
  }
  return outcomes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = fuzz::text_of(data, size);
  const std::vector<Outcome> whole = outcomes_of(bytes, "");
  fuzz::promise(whole == outcomes_of(bytes, std::string_view("\0", 1)), "single bytes are read like all at once");
  fuzz::promise(whole == outcomes_of(bytes, bytes.substr(0, 7)), "pieces are read like all at once");
  return 0;
}
