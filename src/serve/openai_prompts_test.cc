#include "serve/openai_prompts.h"

#include <gtest/gtest.h>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::expect_api_error;
using testing::kBegin;
using Tokens = std::vector<int32_t>;

class Prompts : public ::testing::Test {
 protected:
  std::vector<Prompt> read(const char* given, bool parse_special = true) {
    return read_prompts(ordered_json::parse(given), {"prompt", 3, parse_special}, tiny_.service());
  }
  testing::TinyService tiny_{{.loop = false}};
};

TEST_F(Prompts, AllFourForms) {
  EXPECT_EQ(read("\"ab\"")[0].ids, (Tokens{kBegin, 'a', 'b'}));
  EXPECT_EQ(read("\"ab\"")[0].text, "ab");
  const std::vector<Prompt> two = read(R"(["a", "b"])");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].ids, (Tokens{kBegin, 'b'}));
  EXPECT_EQ(read("[1, 2, 3, 4, 5]")[0].ids, (Tokens{1, 2, 3, 4, 5}));
  EXPECT_FALSE(read("[1]")[0].text.has_value());
  const std::vector<Prompt> lists = read("[[1], [2, 3]]");
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(lists[1].ids, (Tokens{2, 3}));
}

TEST_F(Prompts, SpecialTokensWhereTheyAreMeant) {
  EXPECT_EQ(read("\"</s>\"")[0].ids, (Tokens{kBegin, testing::kEnd}));
  EXPECT_EQ(read("\"</s>\"", false)[0].ids, (Tokens{kBegin, '<', '/', 's', '>'}));
}

TEST_F(Prompts, WhatIsRefused) {
  const auto expect = [&](const char* given, const std::string& param) {
    expect_api_error([&] { read(given); }, 400, param);
  };
  expect("3", "prompt");
  expect("{}", "prompt");
  expect("[]", "prompt");
  expect("[[]]", "prompt[0]");
  expect("[1, -1]", "prompt[1]");
  expect("[1, 320]", "prompt[1]");
  expect("[1, 1.5]", "prompt[1]");
  expect("[18446744073709551615]", "prompt[0]");
  expect("[1, \"a\"]", "prompt[1]");
  expect("[\"a\", 1]", "prompt[1]");
  expect("[\"a\", \"b\", \"c\", \"d\"]", "prompt");
  expect_api_error([&] { read(ordered_json(std::string(600'000, 'a')).dump().c_str()); }, 400, "prompt", "more than");
}

}  // namespace
}  // namespace quire::serve
