// What the longest bodies take, for each of their bytes: DESIGN.md says so, and a limit on bodies is then one on
// memory.
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/testing/peak_memory.h"
#include "serve/api_error.h"
#include "serve/openai.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

constexpr size_t kBytes = (1 << 18) + 8;

template <class Answer>
double bytes_for_each(const std::string& body, int status, const Answer& answer) {
  testing::TinyService tiny({.loop = false});
  const auto exchange = testing::posted("/", body);
  int got = 0;
  const size_t peak = quire::testing::peak_of([&] {
    try {
      answer(exchange, tiny.service());
      got = exchange->status();
    } catch (const ApiError& error) {
      got = error.status;
    }
  });
  EXPECT_EQ(got, status);
  return static_cast<double>(peak) / static_cast<double>(body.size());
}

std::string repeated(std::string_view part) {
  std::string text;
  while (text.size() < kBytes) text += part;
  return text;
}

TEST(BodyMemory, OfTextsIsInProportion) {
  for (const char* part : {"a", "word "})
    EXPECT_LT(bytes_for_each(cat(R"({"prompt": ")", repeated(part), R"("})"), 200,
                             [](const auto& exchange, Service& service) { tokenize(exchange, service); }),
              64);
}

// Longer than the context, as one text and as many small ones: refused, and not before all of it was read.
TEST(BodyMemory, OfCompletionsIsInProportion) {
  const auto answer = [](const auto& exchange, Service& service) { completions(exchange, service, {}); };
  EXPECT_LT(bytes_for_each(cat(R"({"prompt": ")", repeated("word "), R"("})"), 400, answer), 8);
  EXPECT_LT(bytes_for_each(cat(R"({"prompt": [)", repeated("7,"), "7]}"), 400, answer), 64);
  EXPECT_LT(bytes_for_each(cat(R"({"prompt": [)", repeated(R"("a",)"), R"("a"]})"), 400, answer), 64);
}

TEST(BodyMemory, OfChatsIsInProportion) {
  const auto answer = [](const auto& exchange, Service& service) { chat_completions(exchange, service, {}); };
  const std::string short_message = R"({"role": "user", "content": "a"},)";
  EXPECT_LT(
      bytes_for_each(cat(R"({"messages": [{"role": "user", "content": ")", repeated("word "), R"("}]})"), 400, answer),
      16);
  EXPECT_LT(bytes_for_each(cat(R"({"messages": [)", repeated(short_message),
                               short_message.substr(0, short_message.size() - 1), "]}"),
                           400, answer),
            64);
}

// The bytes that all the logprobs of a call take at most: LogprobBudget counts them, and is then a limit on memory.
TEST(AnswerMemory, OfLogprobsIsInProportion) {
  testing::TinyService tiny({.loop = false});
  constexpr int kChoices = 8, kTokens = 100, kTop = 20;
  const auto exchange = testing::posted("/", cat(R"({"messages": [{"role": "user", "content": "a"}], "n": )", kChoices,
                                                 R"(, "max_tokens": )", kTokens, R"(, "ignore_eos": true,
                                                 "logprobs": true, "top_logprobs": )",
                                                 kTop, "}"));
  const size_t peak = quire::testing::peak_of([&] {
    chat_completions(exchange, tiny.service(), {});
    while (tiny.engine().step()) {
    }
  });
  EXPECT_EQ(exchange->status(), 200);
  EXPECT_LT(peak / (kChoices * kTokens * (1 + kTop)), 256u);
}

}  // namespace
}  // namespace quire::serve
