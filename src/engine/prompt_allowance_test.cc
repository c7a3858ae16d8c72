#include "engine/prompt_allowance.h"

#include <gtest/gtest.h>

namespace quire::engine {
namespace {

// A machine on which a step takes `empty` seconds and `row` for each of its rows.
struct Machine {
  double empty = 0.003, row = 0.0005;

  double step(int32_t rows) const { return empty + row * rows; }
  void take(PromptAllowance& allowance, int32_t rows) const {
    allowance.measured(rows, std::chrono::duration<double>(step(rows)));
  }
  // Some steps without prompts, then the rows that steps beside a long prompt come to.
  int32_t settled(PromptAllowance& allowance, int32_t decoding) const {
    for (int i = 0; i < 5; ++i) take(allowance, decoding);
    for (int i = 0; i < 60; ++i) take(allowance, decoding + allowance.rows(decoding, 1));
    return allowance.rows(decoding, 1);
  }
};

TEST(PromptAllowance, BeginsCarefully) {
  EXPECT_EQ(PromptAllowance(64).rows(3, 1), PromptAllowance::kUnknown);
  EXPECT_EQ(PromptAllowance(5).rows(3, 1), 5);
}

TEST(PromptAllowance, StretchesAStepAsFarAsItMay) {
  for (const int32_t decoding : {1, 4, 16, 64}) {
    PromptAllowance allowance(512);
    const Machine machine;
    const int32_t rows = machine.settled(allowance, decoding);
    EXPECT_NEAR(machine.step(decoding + rows) / machine.step(decoding), 1 + PromptAllowance::kShare, 0.12) << decoding;
  }
}

TEST(PromptAllowance, ManyPromptsStretchItFurther) {
  PromptAllowance allowance(512);
  const Machine machine;
  const int32_t one = machine.settled(allowance, 16);
  EXPECT_NEAR(allowance.rows(16, 4), 4 * one, 4);
  EXPECT_EQ(allowance.rows(16, 1000), 512);
}

TEST(PromptAllowance, FollowsACostThatGrows) {
  PromptAllowance allowance(512);
  Machine machine;
  machine.settled(allowance, 4);
  machine.row *= 3;  // deep in a prompt
  for (int i = 0; i < 300; ++i) machine.take(allowance, i % 20 ? 4 + allowance.rows(4, 1) : 4);
  const int32_t rows = allowance.rows(4, 1);
  EXPECT_NEAR(machine.step(4 + rows) / machine.step(4), 1 + PromptAllowance::kShare, 0.3);
}

TEST(PromptAllowance, KeepsItsBounds) {
  PromptAllowance narrow(32), slow(512);
  EXPECT_EQ((Machine{.row = 1e-9}).settled(narrow, 1), 32);
  EXPECT_EQ((Machine{.empty = 0, .row = 1}).settled(slow, 1), PromptAllowance::kLeast);
  PromptAllowance one(1);
  EXPECT_EQ(Machine().settled(one, 4), 1);
}

TEST(PromptAllowance, OneOddStepChangesLittle) {
  PromptAllowance allowance(512);
  const Machine machine;
  const int32_t before = machine.settled(allowance, 16);
  allowance.measured(16 + before, std::chrono::duration<double>(30));  // the process was stopped
  EXPECT_NEAR(allowance.rows(16, 1), before, before * 0.3);
}

TEST(PromptAllowance, StepsOfOneSizeTellNothingAboutRows) {
  PromptAllowance allowance(512);
  for (int i = 0; i < 100; ++i) Machine().take(allowance, 4);
  EXPECT_EQ(allowance.rows(4, 1), PromptAllowance::kUnknown);
}

}  // namespace
}  // namespace quire::engine
