#include "serve/api_error.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

TEST(ApiError, OpenAisBodyHasFourFields) {
  const ApiError error(404, "no model x", "model", "model_not_found");
  EXPECT_EQ(
      error_body(error, Interface::openai).dump(),
      R"({"error":{"message":"no model x","type":"invalid_request_error","param":"model","code":"model_not_found"}})");
  EXPECT_EQ(error_body(ApiError(400, "x"), Interface::openai).dump(),
            R"({"error":{"message":"x","type":"invalid_request_error","param":null,"code":null}})");
}

TEST(ApiError, SglangsBodyHasTheMessage) {
  EXPECT_EQ(error_body(ApiError(400, "x", "y"), Interface::sglang).dump(), R"({"error":{"message":"x"}})");
}

TEST(ApiError, TheTypeFollowsFromTheStatus) {
  const auto type = [](int status) {
    return error_body(ApiError(status, "x"), Interface::openai)["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(type(401), "authentication_error");
  EXPECT_EQ(type(429), "rate_limit_error");
  EXPECT_EQ(type(500), "server_error");
  EXPECT_EQ(type(503), "server_error");
}

TEST(ApiError, A503SaysWhenToComeAgain) {
  const http::Response busy = error_response(ApiError(503, "full"), Interface::openai);
  EXPECT_EQ(busy.status, 503);
  EXPECT_EQ(busy.headers, (http::Headers{{"retry-after", "1"}}));
  EXPECT_TRUE(error_response(ApiError(400, "x"), Interface::openai).headers.empty());
}

TEST(ApiError, BytesThatAreNoTextAreReplaced) {
  const http::Response response = error_response(ApiError(400, "a \xff b"), Interface::sglang);
  EXPECT_EQ(ordered_json::parse(response.body)["error"]["message"], "a \uFFFD b");
}

std::string reason(const std::string& message, Interface interface = Interface::openai) {
  return refusal_reason(error_response(ApiError(400, message), interface));
}

TEST(RefusalReason, IsWhatTheCallerWasTold) {
  EXPECT_EQ(reason("unsupported parameter: \"x\""), "unsupported parameter: \"x\"");
  EXPECT_EQ(reason("rid: expected the name of a request", Interface::sglang), "rid: expected the name of a request");
}

TEST(RefusalReason, HasNothingThatTheCallerSent) {
  EXPECT_EQ(reason("n: expected a whole number from 1 to 2, got \"a private matter\""),
            "n: expected a whole number from 1 to 2");
  EXPECT_EQ(reason("not JSON: \"parse error: control character; last read: '\\\"a private matter'\""),
            "not JSON: \"parse error: control character");
}

TEST(RefusalReason, IsEmptyOtherwise) {
  EXPECT_EQ(refusal_reason({.status = 200, .body = R"({"error":{"message":"no"}})"}), "");
  EXPECT_EQ(refusal_reason({.status = 500, .body = "broken"}), "");
  EXPECT_EQ(refusal_reason({.status = 500, .body = R"({"error":"no"})"}), "");
}

}  // namespace
}  // namespace quire::serve
