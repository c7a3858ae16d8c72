#include "http/request_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/testing/expect_refused.h"

namespace quire::http {
namespace {

using State = RequestParser::State;

struct Outcome {
  State state = State::head;
  Request request = {};
  AnswerTerms terms = {};
  Refusal refusal = {};
  size_t used = 0;
};

Outcome outcome_of(RequestParser& parser, size_t used) {
  Outcome outcome{.state = parser.state(), .used = used};
  if (outcome.state == State::done) outcome.request = parser.take();
  if (outcome.state == State::done) outcome.terms = parser.terms();
  if (outcome.state == State::refused) outcome.refusal = parser.refusal();
  return outcome;
}

Outcome parse_in_pieces(std::string_view bytes, size_t piece, const Limits& limits) {
  RequestParser parser(limits);
  size_t used = 0;
  while (used < bytes.size() && (parser.state() == State::head || parser.state() == State::body))
    used += parser.feed(bytes.substr(used, piece));  // of a whole request the head alone, then the rest
  return outcome_of(parser, used);
}

void expect_same(const Outcome& a, const Outcome& b, size_t piece) {
  EXPECT_EQ(a.state, b.state) << "pieces of " << piece;
  EXPECT_EQ(a.refusal.status, b.refusal.status) << "pieces of " << piece;
  EXPECT_EQ(a.refusal.message, b.refusal.message) << "pieces of " << piece;
  EXPECT_EQ(a.request.path, b.request.path) << "pieces of " << piece;
  EXPECT_EQ(a.request.headers, b.request.headers) << "pieces of " << piece;
  EXPECT_EQ(a.request.body, b.request.body) << "pieces of " << piece;
  if (a.state == State::done) {
    EXPECT_EQ(a.used, b.used) << "pieces of " << piece;
  }
}

// Whole, and cut in many ways, which must not matter.
Outcome parse(std::string_view bytes, const Limits& limits = {}) {
  const Outcome whole = parse_in_pieces(bytes, bytes.size(), limits);
  for (const size_t piece : {1, 2, 3, 5, 7, 64}) expect_same(whole, parse_in_pieces(bytes, piece, limits), piece);
  return whole;
}

void expect_refused_with(int status, std::string_view bytes, std::string_view message, const Limits& limits = {}) {
  const Outcome outcome = parse(bytes, limits);
  ASSERT_EQ(outcome.state, State::refused) << bytes;
  EXPECT_EQ(outcome.refusal.status, status) << bytes;
  EXPECT_NE(outcome.refusal.message.find(message), std::string::npos)
      << "'" << outcome.refusal.message << "' of " << bytes;
}

std::string with_headers(std::string_view headers, std::string_view body = "") {
  return cat("POST /x HTTP/1.1\r\nHost: a\r\n", headers, "\r\n", body);
}

TEST(RequestParser, ReadsARequest) {
  const Outcome outcome = parse(
      "POST /v1/a%20b?x=%20y HTTP/1.1\r\nHost: example\r\nX-Odd:  two words \t\r\nContent-Length: 5\r\n\r\nhello");
  ASSERT_EQ(outcome.state, State::done) << outcome.refusal.message;
  EXPECT_EQ(outcome.request.method, "POST");
  EXPECT_EQ(outcome.request.path, "/v1/a b");
  EXPECT_EQ(outcome.request.query, "x=%20y");
  EXPECT_EQ(outcome.request.header("x-odd"), "two words");
  EXPECT_EQ(outcome.request.header("absent"), "");
  EXPECT_EQ(outcome.request.body, "hello");
  EXPECT_TRUE(outcome.terms.keep_alive);
  EXPECT_FALSE(outcome.terms.http_1_0);
}

TEST(RequestParser, LeavesTheNextRequestAlone) {
  const std::string first = with_headers("Content-Length: 2\r\n", "ab");
  const Outcome outcome = parse(first + "GET / HTTP/1.1\r\n");
  ASSERT_EQ(outcome.state, State::done);
  EXPECT_EQ(outcome.used, first.size());
  EXPECT_EQ(outcome.request.body, "ab");
}

TEST(RequestParser, JoinsChunksAndDropsTrailers) {
  const std::string message = with_headers("Transfer-Encoding: CHUNKED\r\n",
                                           "3;note=x\r\nabc\r\n0A\r\n0123456789\r\n0\r\nAuthorization: stolen\r\n\r\n");
  const Outcome outcome = parse(message + "GET");
  ASSERT_EQ(outcome.state, State::done) << outcome.refusal.message;
  EXPECT_EQ(outcome.request.body, "abc0123456789");
  EXPECT_EQ(outcome.request.header("authorization"), "");
  EXPECT_EQ(outcome.used, message.size());
}

TEST(RequestParser, AChunkedBodyMayBeEmpty) {
  const Outcome outcome = parse(with_headers("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"));
  ASSERT_EQ(outcome.state, State::done) << outcome.refusal.message;
  EXPECT_EQ(outcome.request.body, "");
}

TEST(RequestParser, KeepsBodiesOfAnyBytes) {
  std::string body;
  for (int i = 0; i < 40000; ++i) body += static_cast<char>(i * 7);
  const Outcome outcome = parse(with_headers(cat("Content-Length: ", body.size(), "\r\n"), body));
  ASSERT_EQ(outcome.state, State::done) << outcome.refusal.message;
  EXPECT_EQ(outcome.request.body, body);
}

TEST(RequestParser, RefusesAmbiguousLengths) {
  for (const char* length : {"+5", "-5", "0x5", "5 5", "5,5", "5, 5", "", "5a", " ", "18446744073709551616", "1e3"})
    expect_refused_with(400, with_headers(cat("Content-Length: ", length, "\r\n"), "hello"), "Content-Length");
  expect_refused_with(400, with_headers("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), "Content-Length");
  expect_refused_with(400, with_headers("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), "Content-Length");
  expect_refused_with(400, with_headers("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), "");
  expect_refused_with(400, with_headers("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), "");
  expect_refused_with(400, with_headers("Transfer-Encoding: x\r\nContent-Length: 5\r\n", "hello"), "both");
}

TEST(RequestParser, RefusesEncodingsThatOthersMayReadDifferently) {
  for (const char* encoding : {"gzip", "gzip, chunked", "chunked, gzip", "xchunked", "chunked;q=1", "\"chunked\""})
    expect_refused_with(501, with_headers(cat("Transfer-Encoding: ", encoding, "\r\n")), "Transfer-Encoding");
  expect_refused_with(400, with_headers("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
                      "Transfer-Encoding");
  expect_refused_with(400, with_headers("Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n"), "Transfer-Encoding");
  expect_refused_with(400, with_headers("Transfer-Encoding : chunked\r\n"), "malformed");
  expect_refused_with(400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0");
}

TEST(RequestParser, RefusesBadChunks) {
  for (const char* body : {"-1\r\nabc\r\n", "0x1\r\na\r\n", "\r\nabcd", "g\r\nabc\r\n", "3\r\nabcd\r\n0\r\n\r\n",
                           "3 \r\nabc\r\n0\r\n\r\n", "fffffffffffffffff\r\nabc\r\n", "3\nabc\r\n0\r\n\r\n"}) {
    const Outcome outcome = parse(with_headers("Transfer-Encoding: chunked\r\n", cat(body, "xxxxx\r\n\r\n")));
    EXPECT_EQ(outcome.state, State::refused) << body;
    EXPECT_TRUE(outcome.refusal.status == 400 || outcome.refusal.status == 413) << outcome.refusal.status;
  }
  for (const char* body : {"5\r\nabc.de\r\r\n", "5\r\nabcde\r\r\n", "1\r\nax", "0\r\n", "0\r\nX"})
    parse(with_headers("Transfer-Encoding: chunked\r\n", body));  // refused or not yet: the same in all pieces
  const std::string extended = cat("3;", std::string(300, 'x'), "\r\nabc\r\n0\r\n\r\n");
  expect_refused_with(400, with_headers("Transfer-Encoding: chunked\r\n", extended), "extension");
  const std::string endless = cat("3;", std::string(40000, 'x'));
  expect_refused_with(400, with_headers("Transfer-Encoding: chunked\r\n", endless), "too long");
  const std::string zeros = cat(std::string(40000, '0'), "3\r\nabc\r\n0\r\n\r\n");
  expect_refused_with(400, with_headers("Transfer-Encoding: chunked\r\n", zeros), "too long");
}

TEST(RequestParser, RefusesBrokenHeads) {
  const char* broken[] = {
      "GET / HTTP/1.1\nHost: a\n\n",
      "GET / HTTP/1.1\r\nHost: a\n\r\n",
      "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\n: no name\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\nX: a\x01\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\nX: a\x7f\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
      "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
      "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /%1 HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /%0d%0aX:y HTTP/1.1\r\nHost: a\r\n\r\n",
      "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
      "{\"prompt\":1}",
      "get / HTTP/1.1\r\nHost: a\r\n\r\n",
  };
  for (const char* head : broken) expect_refused_with(400, head, "");
  expect_refused_with(400, std::string_view("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 38), "");
  expect_refused_with(505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n", "HTTP/1.1");
  expect_refused_with(505, "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1");
  expect_refused_with(505, "GET / HTTP/1.2\r\nHost: a\r\n\r\n", "HTTP/1.1");
  expect_refused_with(417, with_headers("Expect: wonders\r\n"), "100-continue");
}

TEST(RequestParser, OtherProtocolsAreClosedWithoutAnAnswer) {
  expect_refused_with(0, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "");
  expect_refused_with(0, "\x16\x03\x01\x02", "");
}

TEST(RequestParser, HoldsHeadsToTheirLimit) {
  const Limits limits{.head_bytes = 256};
  const std::string_view start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
  const std::string fits = cat(start, std::string(256 - start.size() - 4, 'x'), "\r\n\r\n");
  ASSERT_EQ(fits.size(), 256u);
  EXPECT_EQ(parse(fits, limits).state, State::done);
  const std::string over = cat(start, std::string(256 - start.size() - 3, 'x'), "\r\n\r\n");
  expect_refused_with(431, over, "256 bytes", limits);
  expect_refused_with(431, cat("GET /", std::string(1000, 'a')), "256 bytes", limits);
}

TEST(RequestParser, HoldsHeadersToTheirCount) {
  std::string headers;
  for (size_t i = 1; i < kMostHeaders; ++i) headers += "X: y\r\n";
  EXPECT_EQ(parse(with_headers(headers)).state, State::done);
  expect_refused_with(431, with_headers(headers + "X: y\r\n"), "headers");
}

TEST(RequestParser, HoldsBodiesToTheirLimitHoweverTheyCome) {
  const Limits limits{.body_bytes = 10};
  EXPECT_EQ(parse(with_headers("Content-Length: 10\r\n", "0123456789"), limits).state, State::done);
  expect_refused_with(413, with_headers("Content-Length: 11\r\n"), "10 bytes", limits);
  const std::string encoding = "Transfer-Encoding: chunked\r\n";
  EXPECT_EQ(parse(with_headers(encoding, "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"), limits).state, State::done);
  expect_refused_with(413, with_headers(encoding, "5\r\n01234\r\n6\r\n567890\r\n0\r\n\r\n"), "10 bytes", limits);
  expect_refused_with(413, with_headers(encoding, "ffffffff\r\nabc"), "10 bytes", limits);
}

TEST(RequestParser, TakesTargetsInAbsoluteForm) {
  EXPECT_EQ(parse("GET http://a:8000/p/q?r HTTP/1.1\r\nHost: a\r\n\r\n").request.path, "/p/q");
  EXPECT_EQ(parse("GET http://a:8000/p/q?r HTTP/1.1\r\nHost: a\r\n\r\n").request.query, "r");
  EXPECT_EQ(parse("GET HTTPS://a HTTP/1.1\r\nHost: a\r\n\r\n").request.path, "/");
}

TEST(RequestParser, ReadsTheTermsOfTheAnswer) {
  EXPECT_FALSE(parse(with_headers("Connection: Close\r\n")).terms.keep_alive);
  EXPECT_FALSE(parse(with_headers("Connection: x, close ,y\r\n")).terms.keep_alive);
  EXPECT_FALSE(parse("GET / HTTP/1.0\r\n\r\n").terms.keep_alive);
  EXPECT_TRUE(parse("GET / HTTP/1.0\r\n\r\n").terms.http_1_0);
  EXPECT_TRUE(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").terms.keep_alive);
  EXPECT_TRUE(parse(with_headers("Expect: 100-Continue\r\n")).terms.expects_continue);
  const Outcome head = parse("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(head.terms.without_body);
  EXPECT_EQ(head.request.method, "GET");
}

TEST(RequestParser, IsTakenOnlyWhenItsHeadIsThere) {
  RequestParser parser(Limits{});
  parser.feed("GET / HT");
  expect_refused([&] { parser.take(); }, "before its head is complete");
}

TEST(RequestParser, StopsBehindTheHeadForItToBeJudged) {
  const std::string head = with_headers("Content-Length: 3\r\n"), bytes = head + "abc";
  RequestParser parser(Limits{});
  EXPECT_EQ(parser.feed(bytes), head.size());
  EXPECT_EQ(parser.state(), State::body);
  EXPECT_EQ(parser.head().path, "/x");
  EXPECT_EQ(parser.body_bytes(), 0u);
  parser.limit_body(3);
  EXPECT_EQ(parser.feed("abc"), 3u);
  EXPECT_EQ(parser.state(), State::done);
}

TEST(RequestParser, ALimitThatTheHeadGivesHoldsHoweverTheBodyComes) {
  const auto refusal_of = [](const std::string& headers, std::string_view body) {
    RequestParser parser(Limits{});
    parser.feed(with_headers(headers));
    parser.limit_body(3);
    if (parser.state() == State::body) parser.feed(body);
    return parser.state() == State::refused ? parser.refusal() : Refusal{};
  };
  EXPECT_EQ(refusal_of("Content-Length: 4\r\n", "").message, "the body is longer than 3 bytes");
  EXPECT_EQ(refusal_of("Transfer-Encoding: chunked\r\n", "2\r\nab\r\n2\r\ncd\r\n").status, 413);
  EXPECT_EQ(refusal_of("Transfer-Encoding: chunked\r\n", "4\r\n").status, 0) << "a line that may go on";
  EXPECT_EQ(refusal_of("Transfer-Encoding: chunked\r\n", "4\r\nabc").status, 413);
  EXPECT_EQ(refusal_of("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n").status, 0);
}

}  // namespace
}  // namespace quire::http
