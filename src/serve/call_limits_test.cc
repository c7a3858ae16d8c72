#include "serve/call_limits.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/openai.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using testing::kContext;
using testing::TinyService;

std::string code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.code.empty() ? "refused" : error.code;
  }
  return "taken";
}

engine::Request asking(size_t prompt, int32_t new_tokens, int32_t top, int32_t from = -1) {
  engine::Request request;
  request.prompt.assign(prompt, 1);
  request.max_new_tokens = new_tokens;
  request.top_logprobs = top;
  request.prompt_logprobs_from = from;
  return request;
}

TEST(PromptLength, OneTokenOfTheContextIsLeftForTheAnswer) {
  TinyService tiny({.loop = false});
  EXPECT_EQ(code_of([&] { check_prompt_length(kContext - 1, tiny.service(), "prompt"); }), "taken");
  EXPECT_EQ(code_of([&] { check_prompt_length(kContext, tiny.service(), "prompt"); }), "context_length_exceeded");
}

TEST(PromptLength, ATextThatCannotFitIsRefusedBeforeItIsTokenized) {
  TinyService tiny({.loop = false});
  const auto code = [&](size_t bytes) {
    return code_of([&] { check_text_length(std::string(bytes, 'a'), tiny.service(), "text"); });
  };
  EXPECT_EQ(code(kContext), "taken");
  EXPECT_EQ(code(kContext * 64), "context_length_exceeded");
}

// What becomes of max_new_tokens where the server's own limit is 100; -1: it is refused.
int32_t limited(const char* text, int32_t read) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.max_completion_tokens = 100; }, .loop = false});
  const auto body = nlohmann::ordered_json::parse(text);
  Fields fields(body, "");
  engine::Request request = asking(1, read, -1);
  constexpr std::string_view kNames[] = {"max_completion_tokens", "max_tokens"};
  const auto limit = [&] { limit_answer(request, fields, kNames, tiny.service()); };
  return code_of(limit) == "taken" ? request.max_new_tokens : -1;
}

TEST(AnswerLimit, CapsDefaultsAndRefusesWhatIsAskedAboveIt) {
  EXPECT_EQ(limited("{}", -1), 100);
  EXPECT_EQ(limited("{}", 16), 16);
  EXPECT_EQ(limited("{}", 128), 100);
  EXPECT_EQ(limited(R"({"max_tokens": null})", -1), 100);
  EXPECT_EQ(limited(R"({"max_tokens": 100})", 100), 100);
  EXPECT_EQ(limited(R"({"max_tokens": 101})", 101), -1);
  EXPECT_EQ(limited(R"({"max_completion_tokens": 101, "max_tokens": 5})", 101), -1);
}

TEST(LogprobCount, CountsWhatACallCanComeTo) {
  TinyService tiny({.loop = false});
  constexpr int64_t kEach = 1 + 100;
  const auto answers_taken = [&](const engine::Request& request) {
    LogprobCount count(tiny.service(), "logprobs");
    for (int64_t answers = 0;; ++answers)
      if (code_of([&] { count.add(request, 1); }) != "taken") return answers;
  };
  EXPECT_EQ(answers_taken(asking(10, 20, 100)), kMostLogprobs / (kEach * 20));
  EXPECT_EQ(answers_taken(asking(10, 20, 100, 4)), kMostLogprobs / (kEach * 26)) << "and the prompt's";
  EXPECT_EQ(answers_taken(asking(10, -1, 100)), kMostLogprobs / (kEach * (kContext - 10))) << "to the context's end";
}

TEST(LogprobCount, AnswersCountEach) {
  TinyService tiny({.loop = false});
  const auto code = [&](int64_t answers) {
    return code_of([&] { LogprobCount(tiny.service(), "logprobs").add(asking(10, 20, 99), answers); });
  };
  EXPECT_EQ(code(kMostLogprobs / 2000), "taken");
  EXPECT_EQ(code(kMostLogprobs / 2000 + 1), "refused");
}

TEST(LogprobCount, WhatAllCallsTogetherMayComeToIsLimited) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.most_logprobs = 1000; }, .loop = false});
  const auto status = [&](const std::string& body) {
    try {
      generate(testing::posted("/generate", body), tiny.service(), {});
    } catch (const ApiError& error) {
      return error.status;
    }
    return 200;
  };
  const std::string some = R"({"text": "hello", "return_logprob": true, "top_logprobs_num": 9,
                               "sampling_params": {"max_new_tokens": 60}})";
  EXPECT_EQ(status(R"({"text": "hello", "return_logprob": true, "sampling_params": {"max_new_tokens": null},
                       "top_logprobs_num": 9})"),
            400)
      << "never fits";
  EXPECT_EQ(status(some), 200);
  EXPECT_EQ(status(some), 503) << "not while others are there";
  EXPECT_EQ(status(R"({"text": "hello"})"), 200);
  while (tiny.engine().step()) {
  }
  EXPECT_EQ(status(some), 200);
  const auto chat = testing::posted("/v1", R"({"messages": [{"role": "user", "content": "a"}], "logprobs": true,
                                               "top_logprobs": 9, "max_completion_tokens": 60})");
  EXPECT_THROW(chat_completions(chat, tiny.service(), {}), ApiError) << "of all interfaces";
}

// A stream that nobody reads to its end holds its share no longer than its request.
TEST(LogprobCount, AClientThatLeavesGivesItsShareBack) {
  for (const auto& [body, answer] : std::vector<std::pair<const char*, decltype(&generate)>>{
           {R"({"text": "hello", "return_logprob": true, "top_logprobs_num": 9, "stream": true,
                "sampling_params": {"max_new_tokens": 60, "ignore_eos": true}})",
            generate},
           {R"({"messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 9, "stream": true,
                "ignore_eos": true, "max_completion_tokens": 60})",
            chat_completions}}) {
    TinyService tiny({.change = [](ServiceOptions& options) { options.most_logprobs = 1000; }, .loop = false});
    auto leaves = testing::posted("/", body);
    answer(leaves, tiny.service(), {});
    for (int i = 0; i < 3; ++i) tiny.engine().step();
    EXPECT_TRUE(leaves->streams() && !leaves->ended());
    EXPECT_THROW(tiny.service().logprob_budget().take(1000), ApiError);
    leaves->leave();
    leaves.reset();
    while (tiny.engine().step()) {
    }
    EXPECT_NO_THROW(tiny.service().logprob_budget().take(1000));
  }
}

TEST(LogprobCount, ThoseThatAreNotWantedAreFree) {
  TinyService tiny({.loop = false});
  LogprobCount count(tiny.service(), "logprobs");
  for (int i = 0; i < 100'000; ++i) count.add(asking(10, -1, -1), 64);
}

// What the tokenizer is asked for in a wrong way is no fault of the caller's.
TEST(EncodedText, OnlyWhatTheTokenizerRefusesIsTheCallers) {
  TinyService tiny({.loop = false});
  const size_t offsets[] = {0};  // into a text that is no UTF-8
  EXPECT_THROW(encoded_text("\xff", {.never_special = offsets}, tiny.service(), "prompt"), CheckError);
}

}  // namespace
}  // namespace quire::serve
