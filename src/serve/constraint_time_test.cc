// What becomes of a call whose constraint takes too long to follow: its own caller is told, and nobody else notices.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "serve/openai_testing.h"
#include "serve/sglang.h"

namespace quire::serve {
namespace {

using namespace std::chrono_literals;
using nlohmann::ordered_json;
using testing::answered;
using testing::TinyService;

// Every letter may belong to any of the rules, so that each more letter takes longer.
constexpr const char* kAmbiguous = "root ::= root root root | [a-z] | \"\"";
constexpr const char* kSentence = "the constraint on the output takes too long to follow";

TinyService::Options with_mask_time(std::chrono::microseconds at_once) {
  return {.grammars = {.mask_time = {.at_once = at_once, .per_token = 0us}}};
}

ordered_json generate_body(int choices, bool stream) {
  return {{"text", "hello"},
          {"stream", stream},
          {"sampling_params",
           {{"n", choices}, {"ebnf", kAmbiguous}, {"max_new_tokens", 400}, {"min_new_tokens", 400}, {"seed", 1}}}};
}

ordered_json chat_body(int choices, bool stream) {
  return {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
          {"stream", stream},
          {"n", choices},
          {"ebnf", kAmbiguous},
          {"max_tokens", 400},
          {"min_tokens", 400},
          {"seed", 1}};
}

TEST(ConstraintTime, BeforeTheAnswerHasBegunItIs400) {
  TinyService tiny(with_mask_time(0us));
  for (const bool stream : {false, true})
    for (const int choices : {1, 32})
      for (const auto& exchange : {answered(generate, tiny.service(), generate_body(choices, stream)),
                                   answered(chat_completions, tiny.service(), chat_body(choices, stream))}) {
        EXPECT_EQ(exchange->status(), 400) << choices << " choices";
        EXPECT_NE(exchange->body().find(kSentence), std::string::npos) << exchange->body();
      }
  EXPECT_TRUE(tiny.wait_until_idle());
}

TEST(ConstraintTime, AStreamThatHasBegunEndsWithTheError) {
  TinyService tiny(with_mask_time(5ms));
  for (const auto& exchange : {answered(generate, tiny.service(), generate_body(1, true)),
                               answered(chat_completions, tiny.service(), chat_body(1, true))}) {
    EXPECT_EQ(exchange->status(), 200);
    const std::vector<std::string> parts = exchange->parts();
    ASSERT_GT(parts.size(), 2u);
    EXPECT_NE((parts.end()[-2] + parts.back()).find(kSentence), std::string::npos) << parts.back();
  }
  const auto whole = answered(generate, tiny.service(), generate_body(8, false));
  EXPECT_EQ(whole->status(), 400);
  EXPECT_TRUE(tiny.wait_until_idle());
}

// As many texts as a call may have, each of which takes its time; others stream on meanwhile and are not changed.
TEST(ConstraintTime, OthersGoOn) {
  TinyService tiny(with_mask_time(20ms));
  const ordered_json plain = {{"text", "other"},
                              {"sampling_params", {{"temperature", 0}, {"max_new_tokens", 60}, {"ignore_eos", true}}}};
  const auto expected = ordered_json::parse(answered(generate, tiny.service(), plain)->body());
  const auto hostile = testing::posted("/generate", generate_body(32, false).dump());
  generate(hostile, tiny.service(), {});
  const auto other = answered(generate, tiny.service(), plain);
  EXPECT_EQ(other->status(), 200);
  EXPECT_EQ(ordered_json::parse(other->body()).at("output_ids"), expected.at("output_ids"));
  ASSERT_TRUE(hostile->wait_until_ended());
  EXPECT_EQ(hostile->status(), 400) << hostile->body();
  EXPECT_TRUE(tiny.wait_until_idle());
}

// Each source could take its whole time, so those of a call share some.
TEST(ConstraintTime, ManyConstraintsOfACallShareTheTimeToCompile) {
  TinyService tiny({.grammars = {.call_time = 0ms}, .loop = false});
  const auto call = [&](std::vector<const char*> regexes) {
    ordered_json body = {{"text", ordered_json::array()}, {"sampling_params", ordered_json::array()}};
    for (const char* regex : regexes) {
      body["text"].push_back("hello");
      body["sampling_params"].push_back({{"regex", regex}});
    }
    generate(testing::posted("/generate", body.dump()), tiny.service(), {});
  };
  EXPECT_NO_THROW(call({"a+", "a+", "a+"})) << "it is compiled once";
  testing::expect_api_error(
      [&] {
        call({"a+", "b+"});
      },
      400, "sampling_params.regex", "the constraints of this call take longer to compile than 0 ms");
}

}  // namespace
}  // namespace quire::serve
