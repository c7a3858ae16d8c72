#include "http/request_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/lower_case.h"

namespace quire::http {
namespace {

namespace beast = boost::beast;
using BeastParser = beast::http::basic_parser<true>;

constexpr std::string_view kHttp2Preface = "PRI * HTTP/2";
constexpr unsigned char kTlsHandshake = 0x16;  // the first byte of a client that speaks TLS to a plain port
constexpr size_t kShortestChunkedRest = 5;     // "0\r\n\r\n"
constexpr size_t kMostExtension = 256;         // bytes behind a chunk's size; nobody uses them

Refusal refusal_of(const boost::system::error_code& error, const Limits& limits) {
  if (error == beast::http::error::body_limit)
    return {413, cat("the body is longer than ", limits.body_bytes, " bytes")};
  if (error == beast::http::error::bad_version) return {505, "the version is neither HTTP/1.0 nor HTTP/1.1"};
  if (error == beast::http::error::bad_content_length) return {400, "the Content-Length is not one plain number"};
  if (error == beast::http::error::bad_transfer_encoding)
    return {400, "the Transfer-Encoding does not go with the other headers"};
  return {400, cat("the request is malformed: ", error.message())};
}

// Beast's callbacks, filling a Request. Trailers are checked for form and dropped: they must not pass as headers.
class Collector : public BeastParser {
 public:
  Request request;
  AnswerTerms terms;
  std::optional<Refusal> refusal;

 private:
  using Error = beast::error_code;

  void refuse(Refusal why, Error& error) {
    refusal = std::move(why);
    error = beast::http::error::bad_value;
  }
  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target, int version,
                       Error&) override {
    line_ = {{method.data(), method.size()}, {target.data(), target.size()}, version};
  }
  void on_response_impl(int, beast::string_view, int, Error&) override {}
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value, Error& error) override {
    if (++fields_ > kMostHeaders) return refuse({431, cat("more than ", kMostHeaders, " headers")}, error);
    if (!head_read_)
      request.headers.emplace_back(lower_case({name.data(), name.size()}), std::string(value.data(), value.size()));
  }
  void on_header_impl(Error& error) override {
    head_read_ = true;
    HeadOutcome outcome = read_head(line_, request);
    terms = outcome.terms;
    if (outcome.refusal) refuse(*std::move(outcome.refusal), error);
  }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, Error&) override {}
  std::size_t on_body_impl(beast::string_view body, Error&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, beast::string_view extension, Error& error) override {
    if (extension.size() > kMostExtension) refuse({400, "a chunk's extension is too long"}, error);
  }
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view body, Error& error) override {
    return on_body_impl(body, error);
  }
  void on_finish_impl(Error&) override {}

  RequestLine line_;
  size_t fields_ = 0;
  bool head_read_ = false;
};

}  // namespace

struct RequestParser::Impl {
  Limits limits;
  Collector parser;
  State state = State::head;
  Refusal refusal = {};
  std::string pending = {};  // received and not yet parsed: the head so far, or the line of a chunk so far

  explicit Impl(const Limits& given) : limits(given) {
    parser.eager(false);  // one step a call, so that what it looks at does not depend on the pieces
    parser.header_limit(std::numeric_limits<uint32_t>::max());  // ours is exact, whatever the pieces
    parser.body_limit(std::numeric_limits<uint64_t>::max());  // looked at before the head is: limit_body() comes after
  }

  void refuse(Refusal why) {
    state = State::refused;
    refusal = std::move(why);
    pending = {};
  }

  // Bytes of the head that are used; the rest is for the body, or for the next request.
  size_t feed_head(std::string_view bytes) {
    for (size_t used = 0; used < bytes.size();) {
      pending += bytes[used++];
      look_at_newest();
      if (state == State::head && pending.ends_with("\r\n\r\n")) parse_head();
      if (state != State::head) return used;
    }
    return bytes.size();
  }

  void look_at_newest() {
    if (pending.size() == 1 && static_cast<unsigned char>(pending[0]) == kTlsHandshake) return refuse({0, ""});
    if (pending == kHttp2Preface) return refuse({0, ""});
    if (pending.size() == 1 && !(pending[0] >= 'A' && pending[0] <= 'Z'))
      return refuse({400, "the request does not begin with a method"});
    if (pending.back() == '\n' && pending[pending.size() - 2] != '\r')
      return refuse({400, "a line of the head ends without a carriage return"});
    if (pending.size() > limits.head_bytes)
      return refuse({431, cat("the head is longer than ", limits.head_bytes, " bytes")});
  }

  void parse_head() {
    beast::error_code error;
    parser.put({pending.data(), pending.size()}, error);
    if (parser.refusal) return refuse(*std::move(parser.refusal));
    if (error) return refuse(refusal_of(error, limits));
    pending = {};
    state = parser.is_done() ? State::done : State::body;
    if (state == State::body) limit_body(limits.body_bytes);
  }

  void limit_body(size_t most) {
    limits.body_bytes = std::min(limits.body_bytes, most);  // what refusals name
    parser.body_limit(limits.body_bytes);
    const auto length = parser.content_length();
    if (length && *length > limits.body_bytes) refuse(refusal_of(beast::http::error::body_limit, limits));
  }

  size_t feed_body(std::string_view bytes) {
    size_t used = 0;
    while (used < bytes.size() && state == State::body) {
      const size_t room = limits.head_bytes - pending.size();
      const std::string_view piece = bytes.substr(used, room);
      pending += piece;
      used += piece.size();
      parse_body();
    }
    if (state != State::done) return bytes.size();
    return used - std::exchange(pending, {}).size();
  }

  // A chunk's line, or the trailers, may take as much room as a head.
  void parse_body() {
    const size_t enough = parser.chunked() ? kShortestChunkedRest : 1;
    std::string_view rest = pending;
    beast::error_code error;
    while (!parser.is_done() && rest.size() >= enough && !error)
      rest.remove_prefix(parser.put({rest.data(), rest.size()}, error));
    if (parser.refusal) return refuse(*std::move(parser.refusal));
    if (error && error != beast::http::error::need_more) return refuse(refusal_of(error, limits));
    pending.erase(0, pending.size() - rest.size());
    if (parser.is_done()) {
      state = State::done;
    } else if (pending.size() == limits.head_bytes) {
      refuse({400, "a line of the chunked body is too long"});
    }
  }
};

RequestParser::RequestParser(const Limits& limits) : impl_(std::make_unique<Impl>(limits)) {
  check(limits.head_bytes >= 64, "a head of ", limits.head_bytes, " bytes holds no request");
}
RequestParser::~RequestParser() = default;

size_t RequestParser::feed(std::string_view bytes) {
  return impl_->state == State::head ? impl_->feed_head(bytes) : impl_->feed_body(bytes);
}

void RequestParser::limit_body(size_t most) {
  check(state() == State::body && body_bytes() == 0, "a body is limited that is not about to come");
  impl_->limit_body(most);
}

RequestParser::State RequestParser::state() const { return impl_->state; }
size_t RequestParser::body_bytes() const { return impl_->parser.request.body.size(); }
const Request& RequestParser::head() const { return impl_->parser.request; }
const AnswerTerms& RequestParser::terms() const { return impl_->parser.terms; }
const Refusal& RequestParser::refusal() const { return impl_->refusal; }

Request RequestParser::take() {
  check(state() == State::body || state() == State::done, "a request is taken before its head is complete");
  return std::move(impl_->parser.request);
}

}  // namespace quire::http
