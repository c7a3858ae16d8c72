#include "base/json_fields.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire {
namespace {

using nlohmann::json;

const json kObject = {{"text", "x"}, {"flag", true}, {"number", 0.5}, {"count", 7}, {"list", {1}}, {"null", nullptr}};

TEST(JsonFields, ReadTheirTypes) {
  EXPECT_EQ(text_field(kObject, "text"), "x");
  EXPECT_TRUE(flag_field(kObject, "flag", false));
  EXPECT_TRUE(flag_field(kObject, "none", true));
  EXPECT_EQ(number_field(kObject, "number"), 0.5);
  EXPECT_EQ(number_field(kObject, "count"), 7);
  EXPECT_EQ(count_field(kObject, "count", 7, 7), 7);
  EXPECT_EQ(list_field(kObject, "list"), json::array({1}));
}

TEST(JsonFields, NullIsMissing) {
  EXPECT_TRUE(optional_field(kObject, "null").is_null());
  EXPECT_TRUE(flag_field(kObject, "null", true));
  for (const char* key : {"null", "none"})
    expect_refused([&] { field(kObject, key); }, cat("the key \"", key, "\" is missing"));
}

TEST(JsonFields, RefusalsNameKeyAndValue) {
  expect_refused([] { text_field(kObject, "count"); }, "count is not a string but number");
  expect_refused([] { flag_field(kObject, "text", true); }, "text is not true or false but string");
  expect_refused([] { number_field(kObject, "flag"); }, "flag is not a number but boolean");
  expect_refused([] { count_field(kObject, "number", 0, 9); }, "number is not a whole number but number");
  expect_refused([] { count_field(kObject, "count", 8, 9); }, "count = 7 is not between 8 and 9");
  expect_refused([] { to_count(18446744073709551615u, "n", 0, 9); }, "n = 18446744073709551615 is not between 0 and 9");
  expect_refused([] { list_field(kObject, "text"); }, "text is not an array but string");
  expect_refused([] { field(json::array(), "a"); }, "is not an object but array");
}

}  // namespace
}  // namespace quire
