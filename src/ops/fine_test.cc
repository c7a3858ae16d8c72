#include "ops/fine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/matmul.h"
#include "ops/matmul_testing.h"
#include "ops/testing_rows.h"

namespace quire::ops {
namespace {

using testing::random_floats;
using testing::same_bits;
using testing::Weights;
using testing::with_every_exec;

constexpr int64_t kInputs = 96, kOutputs = 80, kRoom = 5;

struct Product {
  explicit Product(Exec& exec) : matrix(std::vector{weights.view()}, PackedMatrix::Join::stack, exec) {}

  void run(int32_t rows, Exec& exec) {
    live = rows;
    split_rows(
        {.in = {x.data(), kRoom, kInputs, kInputs}, .out = split, .live_rows = &live, .live_rows_of_out = &doubled},
        exec);
    matmul(
        {.weights = &matrix, .in = split, .out = {halves.data(), 2 * kRoom, kOutputs, kOutputs}, .live_rows = &doubled},
        exec);
    add_pairs({.in = {halves.data(), 2 * kRoom, kOutputs, kOutputs},
               .out = {out.data(), kRoom, kOutputs, kOutputs},
               .live_rows = &live},
              exec);
  }

  Weights weights{BlockType::q8_0, kOutputs, kInputs, 3};
  std::vector<float> x = random_floats(kRoom * kInputs, 4);
  ActivationBuffer memory{2 * kRoom, kInputs};
  ActivationRows split = memory.view(kInputs, {.q8 = true});
  PackedMatrix matrix;
  std::vector<float> halves = std::vector<float>(2 * kRoom * kOutputs, -7.0f);
  std::vector<float> out = std::vector<float>(kRoom * kOutputs, -7.0f);
  int32_t live = 0, doubled = 0;
};

// The sum of magnitudes times what 16 bits leave of them.
TEST(Fine, IsTwoHundredTimesCloserThanEightBits) {
  Exec exec({.threads = 2});
  Product product(exec);
  product.run(kRoom, exec);
  const std::vector<float> w = product.weights.values();
  for (int64_t r = 0; r < kRoom; ++r)
    for (int64_t c = 0; c < kOutputs; ++c) {
      double exact = 0, magnitude = 0;
      for (int64_t k = 0; k < kInputs; ++k) {
        const double term = double{product.x[r * kInputs + k]} * w[c * kInputs + k];
        exact += term;
        magnitude += std::abs(term);
      }
      EXPECT_NEAR(product.out[r * kOutputs + c], exact, magnitude * 1e-4 + 1e-6) << r << ", " << c;
    }
}

TEST(Fine, BitsDoNotDependOnRowsThreadsOrInstructionSets) {
  Exec one({.threads = 1, .isa = Isa::plain});
  Product all(one);
  all.run(kRoom, one);
  with_every_exec([&](Exec& exec) {
    for (const int32_t rows : {1, 3, 5}) {
      Product product(exec);
      product.run(rows, exec);
      const auto end = product.out.begin() + rows * kOutputs;
      EXPECT_TRUE(same_bits(std::vector(product.out.begin(), end),
                            std::vector(all.out.begin(), all.out.begin() + rows * kOutputs)));
      EXPECT_TRUE(std::all_of(end, product.out.end(), [](float untouched) { return untouched == -7.0f; }));
    }
  });
}

TEST(Fine, ReplaysWithTheCountOfTheDay) {
  Exec exec({.threads = 2});
  Product recorded(exec), eager(exec);
  Graph graph;
  exec.begin_capture(graph);
  recorded.run(0, exec);
  exec.end_capture();
  recorded.live = 2;
  graph.replay(exec);
  eager.run(2, exec);
  EXPECT_TRUE(same_bits(recorded.out, eager.out));
}

TEST(Fine, RefusesWhatDoesNotFit) {
  Exec exec({.threads = 1});
  Product product(exec);
  const int32_t many = kRoom + 1;
  SplitArgs args{.in = {product.x.data(), kRoom, kInputs, kInputs},
                 .out = product.split,
                 .live_rows = &many,
                 .live_rows_of_out = &product.doubled};
  EXPECT_THROW(split_rows(args, exec), CheckError);
  args.live_rows = &product.live;
  args.out.forms = {.f32 = true};
  EXPECT_THROW(split_rows(args, exec), CheckError);
  EXPECT_THROW(add_pairs({.in = {product.halves.data(), 4, kOutputs, kOutputs},
                          .out = {product.out.data(), kRoom, kOutputs - 1, kOutputs},
                          .live_rows = &product.live},
                         exec),
               CheckError);
}

}  // namespace
}  // namespace quire::ops
