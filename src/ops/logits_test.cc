// Logits: precise near the largest and coarse elsewhere, with the bits of the plain loops on every machine, and without
// the second products that nobody needs.
#include "ops/logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/graph.h"
#include "ops/by_row.h"
#include "ops/matmul_testing.h"

namespace quire::ops {
namespace {

using testing::Weights;
using testing::with_every_exec;

constexpr float kNoLogit = std::numeric_limits<float>::quiet_NaN();

// Rows of floats, what they need to become logits, and these.
class LogitsProblem {
 public:
  // Spread of the rows' numbers: tiny ones make all logits alike, large ones leave few near the largest.
  LogitsProblem(BlockType type, int64_t vocabulary, int64_t inputs, int32_t rows, float spread)
      : weights(type, vocabulary, inputs, 11),
        live(rows),
        x(testing::random_floats(static_cast<size_t>(rows * inputs), 12, spread)),
        logits(static_cast<size_t>(rows * vocabulary), kNoLogit),
        rest(logits),
        marks(static_cast<size_t>(rows * logit_groups(vocabulary)), uint8_t{0xee}),
        largest(static_cast<size_t>(rows), kNoLogit),
        reach(static_cast<size_t>(rows), kUsualReach),
        buffer_(rows, inputs) {
    const WeightView view = weights.view();
    packed = PackedMatrix({&view, 1}, PackedMatrix::Join::stack, testing::team());
  }

  LogitsArgs args() {
    ActivationRows in = buffer_.view(weights.inputs, packed.precise_forms());
    in.f32 = x.data();
    if (in.forms.quantised())
      quantise({.in = {x.data(), room(), weights.inputs, weights.inputs}, .out = in, .live_rows = &live},
               testing::team());
    return {.weights = &packed,
            .in = in,
            .out = rows_of(logits),
            .scale = scale,
            .reach = reach.data(),
            .scratch = {.rest = rows_of(rest), .marks = marks.data(), .largest = largest.data()},
            .live_rows = &live};
  }
  Rows<float> rows_of(std::vector<float>& values) { return {values.data(), room(), weights.outputs, weights.outputs}; }
  int64_t room() const { return std::ssize(x) / weights.inputs; }

  // What one product of both halves gives, and of the first alone.
  std::vector<float> product(ActivationRows in) {
    std::vector<float> result(logits.size());
    ref::matmul({.weights = &packed, .in = in, .out = rows_of(result), .scale = scale, .live_rows = &live},
                testing::team());
    return result;
  }

  Weights weights;
  PackedMatrix packed;
  int32_t live;
  float scale = 1;
  std::vector<float> x, logits, rest;
  std::vector<uint8_t> marks;
  std::vector<float> largest, reach;

 private:
  ActivationBuffer buffer_;
};

bool same_logits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float left, float right) {
    return std::memcmp(&left, &right, sizeof(left)) == 0 || (std::isnan(left) && std::isnan(right));
  });
}

TEST(Logits, ArePreciseNearTheLargestAndCoarseElsewhere) {
  for (const float spread : {1e-6f, 1e-3f, 1.0f}) {
    LogitsProblem problem(BlockType::q4_1, 333, 96, 6, spread);
    const LogitsArgs args = problem.args();
    ref::logits(args, testing::team());
    const std::vector<float> coarse = problem.product(first_of_two(args.in)), precise = problem.product(args.in);
    int64_t near = 0, groups = 0;
    for (int64_t row = 0; row < 6; ++row) {
      const float* own = &coarse[row * 333];
      const float least = *std::max_element(own, own + 333) - kUsualReach;
      for (int64_t first = 0; first < 333; first += kLogitGroup, ++groups) {
        const int64_t end = std::min<int64_t>(first + kLogitGroup, 333);
        const bool is_near = std::any_of(own + first, own + end, [&](float x) { return x >= least; });
        near += is_near;
        for (int64_t i = first; i < end; ++i)
          EXPECT_EQ(problem.logits[row * 333 + i], is_near ? precise[row * 333 + i] : own[i]) << row << ", " << i;
      }
    }
    EXPECT_GE(near, 6) << "each row's largest";
    if (spread == 1e-6f) {
      EXPECT_EQ(near, groups);
    } else if (spread == 1.0f) {
      EXPECT_LT(near, groups / 2);
    }
  }
}

// Each row to its own reach: up to a logit that lies at the very end of it, not to the one behind.
TEST(Logits, ReachAsFarAsTheirRowAsks) {
  constexpr int64_t kTokens = 400;
  LogitsProblem problem(BlockType::q8_0, kTokens, 64, 4, 1e-3f);
  const LogitsArgs args = problem.args();
  const std::vector<float> coarse = problem.product(first_of_two(args.in)), precise = problem.product(args.in);
  for (int64_t row = 0; row < 4; ++row) {
    std::vector<float> sorted(&coarse[row * kTokens], &coarse[(row + 1) * kTokens]);
    std::ranges::sort(sorted, std::greater());
    problem.reach[row] = std::array{0.0f, sorted[0] - sorted[9], sorted[0] - sorted[100], kWholeReach}[row];
  }
  with_every_exec([&](Exec& exec) {
    logits(args, exec);
    for (int64_t row = 0; row < 4; ++row) {
      const float* own = &coarse[row * kTokens];
      const float least = *std::max_element(own, own + kTokens) - problem.reach[row];
      for (int64_t i = 0; i < kTokens; ++i) {
        const float* group = own + i / kLogitGroup * kLogitGroup;
        const bool is_near = std::any_of(group, group + kLogitGroup, [&](float x) { return x >= least; });
        EXPECT_EQ(problem.logits[row * kTokens + i], (is_near ? precise : coarse)[row * kTokens + i])
            << row << ' ' << i;
      }
    }
  });
}

// What an earlier step left in the scratch is not added to another's.
TEST(Logits, DoNotDependOnWhatTheirScratchHeld) {
  LogitsProblem problem(BlockType::q4_1, 1500, 64, 8, 1e-2f);
  with_every_exec([&](Exec& exec) {
    for (const float factor : {1.0f, -30.0f, 0.01f, 7.0f}) {
      for (float& x : problem.x) x *= factor;
      const LogitsArgs args = problem.args();
      logits(args, exec);
      const std::vector<float> got = problem.logits;
      ref::logits(args, testing::team());
      ASSERT_TRUE(same_logits(got, problem.logits)) << factor;
    }
  });
}

// Rows lie apart, scales are none that a model would have.
TEST(Logits, LieWhereTheirRowsBeginAndBearAnyScale) {
  constexpr int64_t kTokens = 100, kApart = 107;
  for (const float scale : {1e-6f, 0.3f, 3e4f}) {
    LogitsProblem problem(BlockType::q5_k, kTokens, 256, 3, 1e-2f);
    problem.scale = scale;
    LogitsArgs args = problem.args();
    ref::logits(args, testing::team());
    const std::vector<float> expected = problem.logits;
    with_every_exec([&](Exec& exec) {
      std::vector<float> wide(3 * kApart, -5.0f), rest(3 * kApart);
      args.out = {wide.data(), 3, kTokens, kApart};
      args.scratch.rest = {rest.data(), 3, kTokens, kApart};
      logits(args, exec);
      for (int64_t i = 0; i < 3 * kApart; ++i)
        EXPECT_EQ(wide[i], i % kApart < kTokens ? expected[i / kApart * kTokens + i % kApart] : -5.0f) << i;
    });
  }
}

TEST(LogitKernels, OfEveryMachinePassOverWhatIsNoNumber) {
  std::vector<float> x = testing::random_floats(1000, 5);
  x[3] = x[500] = x[501] = x[999] = kNoLogit;
  for (const int64_t count : {0, 1, 4, 31, 32, 33, 500, 1000}) {
    const float largest = ref::largest(x.data(), count);
    std::vector<uint8_t> expected(static_cast<size_t>(logit_groups(count))), marks(expected);
    ref::mark_groups(x.data(), count, largest - 1, expected.data());
    with_every_exec([&](Exec& exec) {
      const RowKernels kernels = row_kernels(exec.isa());
      EXPECT_EQ(kernels.largest(x.data(), count), largest) << count;
      kernels.mark_groups(x.data(), count, largest - 1, marks.data());
      EXPECT_EQ(marks, expected) << count;
      kernels.mark_groups(x.data(), count, largest, marks.data());
      EXPECT_EQ(std::ranges::count(marks, 1), count > 0 ? 1 : 0) << "the group of the largest";
    });
  }
}

TEST(Logits, HaveTheSameBitsOnEveryMachine) {
  for (const BlockType type : testing::kQuantised)
    for (const int64_t vocabulary : {5, 16, 333, 2000})
      for (const int32_t rows : {1, 2, 5, 33, 70})
        for (const float spread : {1e-6f, 1e-2f}) {
          LogitsProblem problem(type, vocabulary, 256, rows, spread);
          problem.scale = 0.75f;
          const LogitsArgs args = problem.args();
          ref::logits(args, testing::team());
          const std::vector<float> expected = problem.logits;
          SCOPED_TRACE(cat(type, ", ", vocabulary, " tokens, ", rows, " rows, spread ", spread));
          with_every_exec([&](Exec& exec) {
            std::fill(problem.logits.begin(), problem.logits.end(), kNoLogit);
            std::fill(problem.rest.begin(), problem.rest.end(), kNoLogit);
            logits(args, exec);
            ASSERT_TRUE(same_logits(problem.logits, expected));
          });
        }
}

// More rows than pass a chunk of tiles at once, and more tiles than a chunk has.
TEST(Logits, OfManyRowsAndTilesAreThose) {
  LogitsProblem problem(BlockType::q8_0, 9000, 64, 600, 1e-2f);
  std::fill_n(problem.reach.begin() + 100, 300, kWholeReach);
  const LogitsArgs args = problem.args();
  ref::logits(args, testing::team());
  const std::vector<float> expected = problem.logits;
  with_every_exec([&](Exec& exec) {
    std::fill(problem.logits.begin(), problem.logits.end(), kNoLogit);
    logits(args, exec);
    ASSERT_TRUE(same_logits(problem.logits, expected));
  });
}

// Few logits of large numbers are near the largest: what nobody needs is not computed.
TEST(Logits, MeetFewWeightsTwice) {
  LogitsProblem problem(BlockType::q8_0, 8000, 256, 7, 100);
  const LogitsArgs args = problem.args();
  with_every_exec([&](Exec& exec) {
    if (exec.isa() == Isa::plain) return;  // says what is meant, and computes all
    std::fill(problem.rest.begin(), problem.rest.end(), kNoLogit);
    logits(args, exec);
    const auto computed = std::ranges::count_if(problem.rest, [](float x) { return !std::isnan(x); });
    EXPECT_GT(computed, 0);
    EXPECT_LT(computed, std::ssize(problem.rest) / 2);
  });
}

// Rows that are precise everywhere between others, in runs of one and more: the product of both halves, to the bit.
TEST(Logits, OfRowsThatReachEverywhereAreThoseOfMatmul) {
  LogitsProblem problem(BlockType::q4_k, 500, 256, 9, 1e-2f);
  problem.scale = 0.7f;
  const std::vector<float> precise = problem.product(problem.args().in);
  for (const int64_t row : {0, 3, 4, 5, 8}) problem.reach[row] = kWholeReach;
  const LogitsArgs args = problem.args();
  with_every_exec([&](Exec& exec) {
    std::fill(problem.logits.begin(), problem.logits.end(), kNoLogit);
    logits(args, exec);
    for (int64_t row = 0; row < 9; ++row)
      EXPECT_EQ(std::equal(&precise[row * 500], &precise[(row + 1) * 500], &problem.logits[row * 500]),
                problem.reach[row] == kWholeReach)
          << row;
  });
}

TEST(Logits, OfARowDependOnThatRowAlone) {
  LogitsProblem all(BlockType::q6_k, 700, 256, 9, 1e-2f);
  logits(all.args(), testing::team());
  for (int64_t row = 0; row < 9; ++row) {
    LogitsProblem alone(BlockType::q6_k, 700, 256, 1, 1);
    std::copy_n(&all.x[row * 256], 256, alone.x.begin());
    logits(alone.args(), testing::team());
    EXPECT_TRUE(std::equal(alone.logits.begin(), alone.logits.end(), all.logits.begin() + row * 700)) << row;
  }
}

TEST(Logits, AreComputedForTheRowsThatLiveWhenAGraphIsReplayed) {
  with_every_exec([](Exec& exec) {
    LogitsProblem problem(BlockType::q4_0, 400, 64, 8, 1e-2f);
    const LogitsArgs args = problem.args();
    ref::logits(args, testing::team());
    const std::vector<float> expected = problem.logits;
    Graph graph;
    exec.begin_capture(graph);
    logits(args, exec);
    exec.end_capture();
    for (const int32_t rows : {8, 0, 3}) {
      std::fill(problem.logits.begin(), problem.logits.end(), -5.0f);
      problem.live = rows;
      graph.replay(exec);
      for (int64_t i = 0; i < std::ssize(expected); ++i)
        ASSERT_EQ(problem.logits[i], i < rows * 400 ? expected[i] : -5.0f) << rows << " rows, " << i;
    }
  });
}

// A broken number is nobody's largest and stays visible; the other rows are as without it.
TEST(Logits, OfNumbersThatAreNoneStayVisible) {
  LogitsProblem problem(BlockType::q8_0, 100, 64, 3, 1e-2f);
  logits(problem.args(), testing::team());
  const std::vector<float> sound = problem.logits;
  with_every_exec([&](Exec& exec) {
    for (const float broken : {kNoLogit, std::numeric_limits<float>::infinity()}) {
      LogitsProblem other(BlockType::q8_0, 100, 64, 3, 1e-2f);
      other.x[64 + 5] = broken;
      logits(other.args(), exec);
      for (int64_t i = 0; i < 300; ++i) EXPECT_EQ(std::isfinite(other.logits[i]), i / 100 != 1) << i;
      EXPECT_TRUE(std::equal(sound.begin(), sound.begin() + 100, other.logits.begin()));
      EXPECT_TRUE(std::equal(sound.begin() + 200, sound.end(), other.logits.begin() + 200));
    }
  });
}

TEST(Logits, OfDenseWeightsAreOneProduct) {
  for (const BlockType type : testing::kDense) {
    LogitsProblem problem(type, 90, 64, 3, 1);
    LogitsArgs args = problem.args();
    args.scratch = {};
    logits(args, testing::team());
    EXPECT_EQ(problem.logits, problem.product(args.in));
  }
}

TEST(Logits, OfDenseWeightsTakeRowsInMoreForms) {
  LogitsProblem problem(BlockType::f32, 90, 64, 3, 1e-2f);
  LogitsArgs args = problem.args();
  const std::vector<float> expected = problem.product(args.in);
  const ActivationBuffer buffer(3, 64);
  args.in = buffer.view(64, {.f32 = true, .q8x2 = true});
  args.in.f32 = problem.x.data();
  for (LogitsFn* fn : {ref::logits, logits}) {
    fn(args, testing::team());
    EXPECT_EQ(problem.logits, expected);
  }
}

TEST(LogitsArguments, ThatDoNotFitAreRefused) {
  LogitsProblem problem(BlockType::q8_0, 100, 64, 3, 1);
  const auto refused = [&](auto change) {
    LogitsArgs args = problem.args();
    change(args);
    for (LogitsFn* fn : {ref::logits, cpu::logits, logits}) EXPECT_THROW(fn(args, testing::team()), CheckError);
  };
  refused([](LogitsArgs& args) { args.scratch.marks = nullptr; });
  refused([](LogitsArgs& args) { args.scratch.largest = nullptr; });
  refused([](LogitsArgs& args) { args.scratch.rest.data = nullptr; });
  refused([](LogitsArgs& args) { args.scratch.rest.rows = 2; });
  refused([](LogitsArgs& args) { args.scratch.rest.dim = 99; });
  refused([](LogitsArgs& args) { args.scratch.rest.stride = 99; });
  refused([](LogitsArgs& args) { args.reach = nullptr; });
  for (const float scale : {0.0f, -1.0f, kNoLogit}) refused([=](LogitsArgs& args) { args.scale = scale; });
  const WeightView two[] = {problem.weights.view(), problem.weights.view()};
  const PackedMatrix joined(two, PackedMatrix::Join::stack, testing::team());
  refused([&](LogitsArgs& args) { args.weights = &joined; });
  refused([](LogitsArgs& args) { args.weights = nullptr; });
  refused([](LogitsArgs& args) { args.out.dim = 99; });
  refused([](LogitsArgs& args) { args.live_rows = nullptr; });
  const int32_t too_many = 4;
  refused([&](LogitsArgs& args) { args.live_rows = &too_many; });
}

}  // namespace
}  // namespace quire::ops
