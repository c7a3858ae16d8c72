#include "engine/prompt_results.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/testing/expect_refused.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<int32_t>;
const Tokens kPrompt = {11, 12, 13, 14, 15};

PromptResults logprobs_from(int32_t position) {
  Request request;
  request.prompt_logprobs_from = position;
  return PromptResults(request, kPrompt);
}

PromptResults pooled(Pooling pooling) {
  Request request;
  request.pooling = pooling;
  return PromptResults(request, kPrompt);
}

void expect_missing(const PromptResults& results, int32_t begin, int32_t end) {
  EXPECT_EQ(results.missing().begin, begin);
  EXPECT_EQ(results.missing().end, end);
}

TEST(PromptResults, NothingIsWanted) {
  PromptResults results({}, kPrompt);
  EXPECT_TRUE(results.missing().empty());
  EXPECT_TRUE(results.take_logprobs().empty());
  EXPECT_TRUE(results.embedding().empty());
  expect_refused([&] { results.add({}); }, "nobody waits for");
  expect_refused([&] { results.add_row({}); }, "nobody waits for");
}

TEST(PromptResults, LogprobsFromAPositionOn) {
  expect_missing(logprobs_from(0), 0, 4);
  expect_missing(logprobs_from(1), 0, 4);
  expect_missing(logprobs_from(2), 1, 4);
  expect_missing(logprobs_from(4), 3, 4);
  for (const int32_t behind : {5, 6, 1000}) {
    EXPECT_TRUE(logprobs_from(behind).missing().empty());
    EXPECT_TRUE(logprobs_from(behind).take_logprobs().empty());
  }
}

TEST(PromptResults, TheFirstTokenHasNothingBeforeIt) {
  PromptResults results = logprobs_from(0);
  for (int32_t row = 0; row < 4; ++row) {
    expect_missing(results, row, 4);
    expect_refused([&] { results.take_logprobs(); }, "were not scored");
    results.add({.token = kPrompt[row + 1], .logprob = -1.0f - row, .top = {{row, -0.5f}}, .wanted = {{7, -9.0f}}});
  }
  const std::vector<TokenLogprob> all = results.take_logprobs();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].logprob, 0);
  EXPECT_TRUE(all[0].top.empty());
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(all[i].token, kPrompt[i]);
  EXPECT_EQ(all[3].logprob, -3);
  EXPECT_EQ(all[3].top[0].first, 2);
  EXPECT_EQ(all[3].wanted[0].second, -9);
  EXPECT_TRUE(results.take_logprobs().empty()) << "only once";
}

TEST(PromptResults, MeanOfAllRowsWithLengthOne) {
  PromptResults results = pooled(Pooling::mean);
  expect_missing(results, 0, 5);
  const std::vector<float> row = {3, 0, -4}, other = {0, 5, 0};
  for (int i = 0; i < 4; ++i) results.add_row(row);
  expect_refused([&] { results.embedding(); }, "1 rows of the prompt were not pooled");
  results.add_row(other);
  const double length = std::sqrt(12.0 * 12 + 5 * 5 + 16 * 16);
  EXPECT_EQ(results.embedding(),
            (std::vector<float>{static_cast<float>(12 * (1 / length)), static_cast<float>(5 * (1 / length)),
                                static_cast<float>(-16 * (1 / length))}));
}

TEST(PromptResults, TheLastRowAlone) {
  PromptResults results = pooled(Pooling::last);
  expect_missing(results, 4, 5);
  results.add_row(std::vector<float>{0, 8});
  EXPECT_EQ(results.embedding(), (std::vector<float>{0, 1}));
  EXPECT_TRUE(results.take_logprobs().empty());
}

TEST(PromptResults, ARowOfZerosStaysZero) {
  PromptResults results = pooled(Pooling::last);
  results.add_row(std::vector<float>{0, 0});
  EXPECT_EQ(results.embedding(), (std::vector<float>{0, 0}));
}

TEST(PromptResults, RefusesRowsThatAreNoNumbers) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    PromptResults results = pooled(Pooling::mean);
    expect_refused([&] { results.add_row(std::vector<float>{1, bad}); }, "NaN or infinity");
  }
}

}  // namespace
}  // namespace quire::engine
