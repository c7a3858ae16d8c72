#include "serving_figures.h"

#include <gtest/gtest.h>

namespace quire::bench {
namespace {

TEST(ServingFigures, PercentilesAreValuesThatOccurred) {
  std::vector<double> values;
  for (int i = 200; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(percentile(values, 99), 198);
  EXPECT_EQ(percentile(values, 100), 200);
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile({3}, 99), 3);
}

RequestOutcome good(double first, double total, std::vector<double> gaps, int64_t tokens) {
  return {.status = 200,
          .first_seconds = first,
          .total_seconds = total,
          .gaps = std::move(gaps),
          .prompt_tokens = 10,
          .cached_tokens = 4,
          .output_tokens = tokens};
}

TEST(ServingFigures, WhatFailedCountsAsFailedAndNothingElse) {
  const LoadOutcome outcome{{good(0.1, 1, {0.2, 0.4}, 3),
                             {.status = 503, .error = "full", .total_seconds = 99},
                             {.error = "Connection refused"},
                             good(0.3, 2, {0.6}, 2)},
                            2.5,
                            0};
  const ServingFigures figures = figures_of(outcome);
  EXPECT_EQ(figures.requests, 4);
  EXPECT_EQ(figures.failed, 2);
  EXPECT_EQ(figures.first_error, "status 503, full");
  EXPECT_EQ(figures.prompt_tokens, 20);
  EXPECT_EQ(figures.cached_tokens, 8);
  EXPECT_DOUBLE_EQ(figures.tokens_per_second(), 2);
  EXPECT_DOUBLE_EQ(figures.first_token->median, 0.2);
  EXPECT_DOUBLE_EQ(figures.inter_token->median, 0.4);
  EXPECT_DOUBLE_EQ(figures.request->p99, 2);
}

TEST(ServingFigures, LinesOfARecord) {
  const std::vector<Result> results = results_of(figures_of({{good(0.1, 1, {0.2}, 5)}, 2, 0}), "serving/x");
  std::vector<std::string> names;
  for (const Result& result : results) names.push_back(result.name);
  EXPECT_EQ(names, (std::vector<std::string>{"serving/x/output", "serving/x/first_token", "serving/x/first_token/p99",
                                             "serving/x/inter_token", "serving/x/inter_token/p99", "serving/x/request",
                                             "serving/x/request/p99"}));
  EXPECT_DOUBLE_EQ(*results[0].tokens_per_s, 2.5);
  EXPECT_DOUBLE_EQ(results[1].median_us, 1e5);
}

TEST(ServingFigures, WithoutOneGoodRequestThereAreNoTimes) {
  const ServingFigures figures = figures_of({{{.error = "Connection refused"}}, 1, 0});
  EXPECT_FALSE(figures.first_token || figures.inter_token || figures.request);
  EXPECT_EQ(results_of(figures, "x").size(), 1);
}

}  // namespace
}  // namespace quire::bench
