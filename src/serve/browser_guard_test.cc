#include "serve/browser_guard.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

http::Request request_of(http::Headers headers, std::string method = "POST") {
  http::Request request;
  request.method = std::move(method);
  request.path = "/generate";
  request.headers = std::move(headers);
  return request;
}

int status(const BrowserGuard& guard, http::Headers headers) {
  const auto refusal = guard.refusal(request_of(std::move(headers)));
  return refusal ? refusal->status : 200;
}

std::string header(const http::Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return "";
}

TEST(BrowserGuard, PagesOfOthersMayNotCall) {
  const BrowserGuard guard("0.0.0.0", {});
  EXPECT_EQ(status(guard, {{"host", "a:30000"}}), 200) << "no browser";
  EXPECT_EQ(status(guard, {{"host", "a:30000"}, {"origin", "http://a:30000"}}), 200);
  EXPECT_EQ(status(guard, {{"host", "A.example"}, {"origin", "https://a.example"}}), 200) << "behind a proxy";
  EXPECT_EQ(status(guard, {{"host", "a:80"}, {"origin", "http://a"}}), 200);
  EXPECT_EQ(status(guard, {{"host", "[::1]:30000"}, {"origin", "http://[::1]:30000"}}), 200);
  EXPECT_EQ(status(guard, {{"host", "a:443"}, {"origin", "https://a"}}), 200);
  EXPECT_EQ(status(guard, {{"host", "a:443"}, {"origin", "http://a"}}), 403) << "that is the page at port 80";
  EXPECT_EQ(status(guard, {{"host", "a:80"}, {"origin", "https://a"}}), 403);
  for (const char* foreign : {"http://b:30000", "http://a:30001", "http://a", "null", "a:30000", "http://a:30000.b"})
    EXPECT_EQ(status(guard, {{"host", "a:30000"}, {"origin", foreign}}), 403) << foreign;
  EXPECT_EQ(status(guard, {{"origin", "http://a"}}), 403);
}

TEST(BrowserGuard, NamedOriginsMayCall) {
  const BrowserGuard two("0.0.0.0", {"https://one.example", "https://two.example:8443"}), all("0.0.0.0", {"*"});
  for (const char* named : {"https://one.example", "https://two.example:8443"}) {
    EXPECT_EQ(status(two, {{"host", "a"}, {"origin", named}}), 200) << named;
    EXPECT_EQ(header(two.headers(request_of({{"origin", named}})), "access-control-allow-origin"), named);
  }
  EXPECT_EQ(status(two, {{"host", "a"}, {"origin", "https://two.example"}}), 403);
  EXPECT_TRUE(two.headers(request_of({{"origin", "https://two.example"}})).empty());
  EXPECT_EQ(status(all, {{"host", "a"}, {"origin", "null"}}), 200);
  const http::Headers headers = all.headers(request_of({{"origin", "https://any.example"}}));
  EXPECT_EQ(header(headers, "access-control-allow-origin"), "*");
  EXPECT_NE(header(headers, "access-control-expose-headers").find("x-request-id"), std::string::npos);
}

// A page whose own name was made to point at this machine has that name as its host and its origin.
TEST(BrowserGuard, OnLoopbackOnlyNamesOfThisMachineAreHosts) {
  for (const char* bound : {"127.0.0.1", "localhost", "::1", "127.1.2.3"}) {
    const BrowserGuard guard(bound, {"https://chat.example"});
    for (const char* own :
         {"localhost", "LOCALHOST:30000", "127.0.0.1:30000", "127.0.0.1", "[::1]:30000", "[::1]", "chat.example"})
      EXPECT_EQ(status(guard, {{"host", own}}), 200) << bound << " " << own;
    for (const char* foreign : {"evil.example", "evil.example:30000", "localhost.evil.example", "127.evil.example",
                                "127.0.0.1.evil.example", "10.0.0.1:30000", "[::2]"})
      EXPECT_EQ(status(guard, {{"host", foreign}, {"origin", std::string("http://") + foreign}}), 403) << foreign;
    EXPECT_EQ(status(guard, {}), 200) << "no browser";
  }
  EXPECT_EQ(status(BrowserGuard("0.0.0.0", {}), {{"host", "anything.example"}}), 200);
  EXPECT_EQ(status(BrowserGuard("127.0.0.1", {"*"}), {{"host", "anything.example"}}), 200);
}

TEST(BrowserGuard, ThePreflightAllowsWhatOpenaisClientSends) {
  const BrowserGuard guard("127.0.0.1", {"https://chat.example"});
  const auto asked = [&](const char* origin, const char* headers) {
    return guard.preflight(request_of({{"origin", origin}, {"access-control-request-headers", headers}}, "OPTIONS"));
  };
  const char* openai =
      "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-package-version,"
      "x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout,OpenAI-Beta";
  const auto answer = asked("https://chat.example", openai);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 204);
  const std::string allowed = header(answer->headers, "access-control-allow-headers");
  for (const char* name : {"authorization", "content-type", "x-stainless-retry-count", "openai-beta"})
    EXPECT_NE(allowed.find(name), std::string::npos) << allowed;
  EXPECT_EQ(
      header(asked("https://chat.example", "authorization, x-forwarded-for")->headers, "access-control-allow-headers"),
      "authorization, content-type, x-api-key, x-request-id");
  EXPECT_FALSE(asked("https://other.example", openai));
  EXPECT_FALSE(guard.preflight(request_of({{"origin", "https://chat.example"}}, "POST")));
  EXPECT_FALSE(guard.preflight(request_of({}, "OPTIONS")));
}

TEST(BrowserGuard, FormsAndPlainTextAreNoJson) {
  const auto status_of = [](http::Headers headers) {
    const auto refusal = refusal_of_type(request_of(std::move(headers)));
    return refusal ? refusal->status : 200;
  };
  for (const char* type : {"application/x-www-form-urlencoded", "text/plain", "Text/Plain; charset=utf-8",
                           "multipart/form-data; boundary=x", "text/plain;application/json"}) {
    EXPECT_EQ(status_of({{"content-type", type}, {"content-length", "2"}}), 415) << type;
    EXPECT_EQ(status_of({{"content-type", type}, {"transfer-encoding", "chunked"}}), 415) << type;
    EXPECT_EQ(status_of({{"content-type", type}, {"content-length", "0"}}), 200) << "an empty body is fine";
    EXPECT_EQ(status_of({{"content-type", type}}), 200);
  }
  for (const char* type : {"application/json", "application/json; charset=utf-8", "application/octet-stream", ""})
    EXPECT_EQ(status_of({{"content-type", type}, {"content-length", "2"}}), 200) << type;
  EXPECT_EQ(status_of({{"content-length", "2"}}), 200) << "without a type";
}

TEST(BrowserGuard, WhatIsCompressedIsNoJson) {
  const auto refusal = [](const char* encoding) {
    return refusal_of_type(request_of({{"content-encoding", encoding}, {"content-length", "2"}}));
  };
  for (const char* encoding : {"gzip", "br", "deflate, gzip"}) EXPECT_EQ(refusal(encoding).value().status, 415);
  for (const char* encoding : {"identity", "Identity", ""}) EXPECT_FALSE(refusal(encoding)) << encoding;
}

}  // namespace
}  // namespace quire::serve
