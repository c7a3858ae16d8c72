// Logits: precise near the largest and coarse elsewhere, with the bits of the plain loops on every machine, and without
// the second products that nobody needs.
#include "ops/logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/graph.h"
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
  std::vector<float> largest;

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
      const float least = *std::max_element(own, own + 333) - kNearLargest;
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
  LogitsProblem problem(BlockType::q8_0, 9000, 64, 300, 1e-2f);
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
  refused([](LogitsArgs& args) { args.weights = nullptr; });
  refused([](LogitsArgs& args) { args.out.dim = 99; });
  refused([](LogitsArgs& args) { args.live_rows = nullptr; });
  const int32_t too_many = 4;
  refused([&](LogitsArgs& args) { args.live_rows = &too_many; });
}

}  // namespace
}  // namespace quire::ops
