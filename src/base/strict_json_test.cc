#include "base/strict_json.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"

namespace quire {
namespace {

TEST(StrictJson, ReadsWhatIsWithinTheRules) {
  const nlohmann::json parsed = parse_strict_json(R"({"a": [1, {"a": 2}], "b": {"a": "x"}})", 3);
  EXPECT_EQ(parsed["a"][1]["a"], 2);
  EXPECT_EQ(parsed["b"]["a"], "x");
}

TEST(StrictJson, RefusesAKeyThatOccursTwiceInOneObject) {
  expect_refused([] { parse_strict_json(R"({"a": 1, "b": 2, "a": 3})", 1); }, "the key \"a\" occurs twice");
  expect_refused([] { parse_strict_json(R"({"x": {"a": 1, "a": 1}})", 2); }, "the key \"a\" occurs twice");
  expect_refused([] { parse_strict_json(R"({"a": 1, "\u0061": 1})", 2); }, "the key \"a\" occurs twice");
}

TEST(StrictJson, RefusesDepth) {
  parse_strict_json(R"({"a": [[]]})", 3);
  expect_refused([] { parse_strict_json(R"({"a": [[]]})", 2); }, "nested deeper than 2");
  expect_refused([] { parse_strict_json("{\"a\":" + std::string(1'000'000, '['), 5); }, "nested deeper than 5");
}

TEST(StrictJson, RefusesWhatIsNoObjectOrNoJson) {
  expect_refused([] { parse_strict_json("[]", 2); }, "not an object but array");
  EXPECT_THROW(parse_strict_json("[]", 2), JsonError) << "the text's fault, as callers can tell";
  expect_refused([] { parse_strict_json("", 2); }, "not JSON");
  expect_refused([] { parse_strict_json("{\"a\": 1", 2); }, "not JSON");
  expect_refused([] { parse_strict_json("{\"a\": \"\xff\"}", 2); }, "not JSON");
  expect_refused([] { parse_strict_json("{} {}", 2); }, "not JSON");
}

TEST(StrictJson, KeepsTheOrderOfKeysWithinLimits) {
  const JsonLimits limits{.depth = 2, .keys = 3, .values = 5};
  EXPECT_EQ(parse_strict_ordered_json(R"({"z": [1, 2], "a": 3})", limits).dump(), R"({"z":[1,2],"a":3})");
  expect_refused([&] { parse_strict_ordered_json(R"({"a": 1, "b": 2, "c": 3, "d": 4})", limits); }, "more than 3 keys");
  expect_refused([&] { parse_strict_ordered_json(R"({"a": [1, 2, 3, 4]})", limits); }, "more than 5 values");
  expect_refused([&] { parse_strict_ordered_json(R"({"a": [[]]})", limits); }, "nested deeper than 2");
  expect_refused([&] { parse_strict_json(R"({"a": 1, "b": 2, "c": 3, "d": 4})", limits); }, "more than 3 keys");
}

TEST(StrictJson, RefusalsOfFilesNameTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder.put("a.json", R"({"a": [1]})");
  EXPECT_EQ(read_json_file(path, 10, 2).at("a"), nlohmann::json::array({1}));
  expect_refused([&] { read_json_file(path, 9, 2); }, path + ": has 10 bytes, more than 9");
  expect_refused([&] { read_json_file(path, 10, 1); }, path + ": the JSON is nested deeper than 1");
  expect_refused([&] { read_json_file(folder.path("none"), 10, 1); }, folder.path("none") + ": No such file");
}

// A look at all earlier keys for each would be 45 thousand million comparisons.
TEST(StrictJson, ManyKeysAreReadInNearlyLinearTime) {
  constexpr int kKeys = 300'000;
  std::string text = "{";
  for (int i = 0; i < kKeys; ++i) text.append(i ? ",\"k" : "\"k").append(std::to_string(i)).append("\":0");
  text += '}';
  const auto begin = std::chrono::steady_clock::now();
  const nlohmann::ordered_json parsed =
      parse_strict_ordered_json(text, {.depth = 1, .keys = kKeys, .values = kKeys + 1});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(parsed.size(), size_t{kKeys});
}

}  // namespace
}  // namespace quire
