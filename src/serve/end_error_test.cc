#include "serve/end_error.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

TEST(EndError, TheCauseOfAFailureIsNotForTheCaller) {
  const auto failed = error_of({.reason = EndReason::failed, .error = "no such file: /models/secret"});
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->status, 500);
  EXPECT_STREQ(failed->what(), kServerFailed);
}

TEST(EndError, WhatTheCallerCanChangeIsTold) {
  const auto refused = error_of({.reason = EndReason::refused, .error = "too slow a constraint"});
  const auto late = error_of({.reason = EndReason::timeout, .error = "it waited too long"});
  ASSERT_TRUE(refused && late);
  EXPECT_EQ(refused->status, 400);
  EXPECT_STREQ(refused->what(), "too slow a constraint");
  EXPECT_EQ(late->status, 503);
  EXPECT_STREQ(late->what(), "it waited too long");
  EXPECT_FALSE(error_of({.reason = EndReason::length}));
}

}  // namespace
}  // namespace quire::serve
