#include "serve/fields.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/check.h"
#include "serve/api_error.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

template <class Body>
void expect_400(Body&& body, const std::string& message, const std::string& param) {
  try {
    body();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.what(), message);
    EXPECT_EQ(error.param, param);
    return;
  }
  ADD_FAILURE() << "nothing was thrown; expected: " << message;
}

TEST(Fields, ReadsEachKind) {
  const ordered_json body = ordered_json::parse(R"({"b": true, "i": -3, "whole": 16.0, "x": 0.5, "s": "text",
      "one": "a", "more": ["a", "b"], "ids": [1, 2], "inside": {"deep": 1}, "any": [{}]})");
  Fields fields(body, "");
  EXPECT_EQ(fields.boolean("b"), true);
  EXPECT_EQ(fields.integer("i", -3, 3), -3);
  EXPECT_EQ(fields.integer("whole", 0, 100), 16);
  EXPECT_EQ(fields.number("x", 0, 1), 0.5);
  EXPECT_EQ(fields.string("s", 4), "text");
  EXPECT_EQ(fields.strings("one", 1, 1), std::vector<std::string>{"a"});
  EXPECT_EQ(fields.strings("more", 2, 1), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(fields.token_ids("ids", 2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(fields.object("inside")->integer("deep", 0, 1), 1);
  EXPECT_EQ(fields.required("any").size(), 1u);
  fields.finish();
}

TEST(Fields, AbsentAndNullAreTheSame) {
  const ordered_json body = {{"null", nullptr}};
  Fields fields(body, "");
  for (const char* name : {"null", "absent"}) {
    EXPECT_FALSE(fields.has(name));
    EXPECT_FALSE(fields.boolean(name) || fields.integer(name, 0, 1) || fields.number(name, 0, 1));
    EXPECT_FALSE(fields.string(name, 1) || fields.object(name) || fields.raw(name));
    EXPECT_TRUE(fields.strings(name, 1, 1).empty() && fields.token_ids(name, 1).empty());
    fields.refuse(name, "never");
    expect_400([&] { fields.required(name); }, std::string(name) + " is required", name);
  }
  fields.finish();
}

TEST(Fields, WhatIsWrongIsNamed) {
  const ordered_json body = ordered_json::parse(
      R"({"text": "hot", "list": [], "big": 18446744073709551615, "half": 1.5, "far": 1e300, "ids": [1, -1],
          "no": 0})");
  Fields fields(body, "");
  expect_400([&] { fields.number("text", 0, 2); }, "text: expected a number from 0.0 to 2.0, got \"hot\"", "text");
  expect_400([&] { fields.boolean("no"); }, "no: expected true or false, got 0", "no");
  expect_400([&] { fields.string("list", 9); }, "list: expected a string, got an array of 0", "list");
  for (const char* name : {"big", "half", "far", "text"})
    EXPECT_THROW(fields.integer(name, 0, INT64_MAX), ApiError) << name;
  expect_400([&] { fields.integer("no", 1, 2); }, "no: expected a whole number from 1 to 2, got 0", "no");
  expect_400([&] { fields.token_ids("ids", 2); }, "ids[1]: expected a token id, got -1", "ids[1]");
  expect_400([&] { fields.token_ids("ids", 1); }, "ids: expected at most 1 entries, got 2", "ids");
  expect_400([&] { fields.string("text", 2); }, "text: expected at most 2 bytes, got 3", "text");
  expect_400([&] { fields.strings("ids", 9, 9); }, "ids[0]: expected a string, got 1", "ids[0]");
  expect_400([&] { fields.object("list"); }, "list: expected an object, got an array of 0", "list");
}

TEST(Fields, PathsNameTheObjectsAround) {
  const ordered_json body = {{"inside", {{"x", "y"}}}};
  Fields fields(body, "");
  auto inside = fields.object("inside");
  expect_400([&] { inside->boolean("x"); }, "inside.x: expected true or false, got \"y\"", "inside.x");
  EXPECT_THROW(Fields(ordered_json::array(), ""), ApiError);
}

TEST(Fields, WhatNobodyReadIsIgnoredByName) {
  const ordered_json body = ordered_json::parse(
      R"({"a": 1, "b": 2, "c": null, "store": true, "verbose": false, "inside": {"x": 1, "y": 2, "z": null}})");
  Ignored ignored;
  Fields fields(body, "", &ignored);
  EXPECT_FALSE(fields.strict());
  EXPECT_EQ(fields.integer("a", 0, 1), 1);
  fields.no_effect("store", "it is not");
  fields.no_effect("verbose", "it is not");
  auto inside = fields.object("inside");
  inside->ignore("x");
  inside->finish();
  fields.finish();
  EXPECT_EQ(ignored.header(), "store, inside.y, b");
}

TEST(Fields, WhatNobodyReadIsRefusedIfStrict) {
  const ordered_json body = ordered_json::parse(R"({"a": {"b": 1}, "c": null, "store": true, "no": false})");
  Ignored strict(true);
  Fields fields(body, "", &strict);
  fields.no_effect("no", "it is not");
  expect_400([&] { fields.no_effect("store", "it is not"); }, "store: it is not", "store");
  expect_400([&] { fields.object("a")->finish(); }, R"(unsupported parameter: "a.b")", "a.b");
  fields.finish();
}

TEST(Fields, WhatNobodyReadIsRefused) {
  const ordered_json body = {{"a", 1}, {"b", 2}, {"c\n", 3}};
  Fields fields(body, "");
  fields.ignore("a");
  expect_400([&] { fields.finish(); }, R"(unsupported parameters: "b", "c\n")", "b");
  expect_400([&] { fields.refuse("b", "not here"); }, "b: not here", "b");
}

// With a look at all keys for each name this would be more than ten thousand million comparisons.
TEST(Fields, LargeObjectsAreReadInNearlyLinearTime) {
  constexpr int kKeys = 150'000;
  ordered_json body = ordered_json::object();
  auto& keys = body.get_ref<ordered_json::object_t&>();
  for (int i = 0; i < kKeys; ++i) keys.emplace_back(cat("k", i), i == 7 ? ordered_json() : ordered_json(i));
  const auto begin = std::chrono::steady_clock::now();
  Fields fields(body, "");
  for (int i = 0; i < kKeys; ++i)
    ASSERT_EQ(fields.integer(cat("k", i), 0, kKeys), i == 7 ? std::nullopt : std::optional<int64_t>(i));
  EXPECT_FALSE(fields.has("k") || fields.has("k7") || fields.has("zzz"));
  fields.finish();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace quire::serve
