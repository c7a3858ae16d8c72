#include "engine/step_times.h"

#include <gtest/gtest.h>

namespace quire::engine {
namespace {

using std::chrono::duration;

// A machine whose rows cost so much of a step, taken by steps of these rows.
void take_steps(StepTimes& times, std::initializer_list<int32_t> rows, double row, double level = 0.003,
                int steps = 60) {
  for (int i = 0; i < steps; ++i)
    for (const int32_t n : rows) times.measured(n, duration<double>(level * (1 + row * (n - 1))));
}

TEST(StepTimes, BeginWithAGuessAndLearn) {
  StepTimes times(16, 0.15);
  EXPECT_DOUBLE_EQ(times.of(1), 1);
  EXPECT_DOUBLE_EQ(times.of(5), 1.6);
  take_steps(times, {1, 4, 8}, 0.4);
  EXPECT_NEAR(times.of(4) / times.of(1), 2.2, 0.1);
  EXPECT_NEAR(times.of(8) / times.of(1), 3.8, 0.2);
  EXPECT_GE(times.of(9), times.of(8)) << "though nobody measured it";
}

// Texts get longer, or the machine slower: what was not measured meanwhile keeps its proportion.
TEST(StepTimes, KeepTheirProportionsWhenAllStepsGetSlower) {
  StepTimes times(16, 0.15);
  take_steps(times, {1, 8}, 0.2);
  const double before = times.of(8) / times.of(1);
  take_steps(times, {1}, 0.2, 0.009);
  EXPECT_NEAR(times.of(8) / times.of(1), before, 0.3 * before);
  take_steps(times, {1}, 0.2, 0.003);
  EXPECT_NEAR(times.of(8) / times.of(1), before, 0.1 * before);
}

TEST(StepTimes, OneOddStepChangesLittle) {
  StepTimes times(16, 0.15);
  take_steps(times, {1, 4}, 0.2);
  const double before = times.of(4) / times.of(1);
  times.measured(4, duration<double>(10));
  EXPECT_NEAR(times.of(4) / times.of(1), before, 0.1 * before);
}

TEST(StepTimes, IgnoreWhatTheyHaveNoPlaceFor) {
  StepTimes times(4, 0.5);
  times.measured(5, duration<double>(1));
  times.measured(0, duration<double>(1));
  times.measured(1, duration<double>(0));
  EXPECT_DOUBLE_EQ(times.of(4), 2.5);
  EXPECT_DOUBLE_EQ(times.of(9), 2.5);
}

}  // namespace
}  // namespace quire::engine
