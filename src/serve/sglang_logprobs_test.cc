#include "serve/sglang_logprobs.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::json;

json lists_of(const LogprobLists& lists) {
  std::string members;
  lists.append_to(members);
  return json::parse("{" + members + R"("end":0})");
}

const engine::TokenLogprob kA = {
    .token = 'a', .logprob = -0.5f, .top = {{'a', -0.5f}, {'b', -1}}, .wanted = {{'z', -9}}};
const engine::TokenLogprob kQuote = {.token = '"', .logprob = -0.25f, .top = {{'"', -0.25f}}, .wanted = {{'z', -8}}};

class SglangLogprobs : public ::testing::Test {
 protected:
  const text::Tokenizer tokenizer_{testing::tiny_vocabulary()};
};

TEST_F(SglangLogprobs, AreEmptyUnlessWanted) {
  LogprobLists lists(tokenizer_, {});
  lists.add({{kA}});
  EXPECT_EQ(lists_of(lists), json::parse(R"({"end":0})"));
}

TEST_F(SglangLogprobs, OfTheOutputGrow) {
  LogprobLists lists(tokenizer_, {.wanted = true, .top = true, .ids = true});
  lists.add({{kA}});
  lists.add({{kQuote, kA}});
  const json all = lists_of(lists);
  EXPECT_EQ(all["input_token_logprobs"], json::array());
  EXPECT_EQ(all["output_token_logprobs"], json::parse("[[-0.5,97,null],[-0.25,34,null],[-0.5,97,null]]"));
  EXPECT_EQ(all["output_top_logprobs"],
            json::parse("[[[-0.5,97,null],[-1,98,null]],[[-0.25,34,null]],[[-0.5,97,null],[-1,98,null]]]"));
  EXPECT_EQ(all["output_token_ids_logprobs"], json::parse("[[[-9,122,null]],[[-8,122,null]],[[-9,122,null]]]"));
}

TEST_F(SglangLogprobs, OfThePromptsFirstTokenAreNull) {
  LogprobLists lists(tokenizer_, {.wanted = true, .top = true, .ids = true});
  lists.add_prompt({{kA, kQuote}});
  const json all = lists_of(lists);
  EXPECT_EQ(all["input_token_logprobs"], json::parse("[[null,97,null],[-0.25,34,null]]"));
  EXPECT_EQ(all["input_top_logprobs"], json::parse("[null,[[-0.25,34,null]]]"));
  EXPECT_EQ(all["input_token_ids_logprobs"], json::parse("[null,[[-8,122,null]]]"));
}

TEST_F(SglangLogprobs, HaveTextsIfWanted) {
  LogprobLists lists(tokenizer_, {.wanted = true, .texts = true});
  lists.add({{kQuote, {.token = testing::kEnd, .logprob = -1}, {.token = 0xE2, .logprob = -1}}});
  const json all = lists_of(lists);
  EXPECT_EQ(all["output_token_logprobs"], json::parse(R"([[-0.25,34,"\""],[-1,257,"</s>"],[-1,226,"\ufffd"]])"));
  EXPECT_FALSE(all.contains("output_top_logprobs"));
}

TEST_F(SglangLogprobs, OfImpossibleTokensAreNull) {
  LogprobLists lists(tokenizer_, {.wanted = true});
  lists.add({{{.token = 1, .logprob = -std::numeric_limits<float>::infinity()}}});
  EXPECT_EQ(lists_of(lists)["output_token_logprobs"], json::parse("[[null,1,null]]"));
}

}  // namespace
}  // namespace quire::serve
