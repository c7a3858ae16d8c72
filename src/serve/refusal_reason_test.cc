#include "serve/refusal_reason.h"

#include <gtest/gtest.h>

#include "serve/api_error.h"

namespace quire::serve {
namespace {

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
