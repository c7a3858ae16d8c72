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
    fine_matmul(args(), exec);
  }
  FineMatmulArgs args() {
    return {.weights = &matrix,
            .in = {x.data(), kRoom, kInputs, kInputs},
            .out = {out.data(), kRoom, kOutputs, kOutputs},
            .live_rows = &live,
            .scratch = &scratch};
  }

  Weights weights{BlockType::q8_0, kOutputs, kInputs, 3};
  std::vector<float> x = random_floats(kRoom * kInputs, 4);
  PackedMatrix matrix;
  FineScratch scratch{kRoom, kInputs, kOutputs};
  std::vector<float> out = std::vector<float>(kRoom * kOutputs, -7.0f);
  int32_t live = 0;
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

TEST(Fine, AddsToWhatIsThere) {
  Exec exec({.threads = 2});
  Product set(exec), added(exec);
  set.run(kRoom, exec);
  added.live = kRoom;
  FineMatmulArgs args = added.args();
  args.store = Store::add;
  fine_matmul(args, exec);
  for (size_t i = 0; i < set.out.size(); ++i) EXPECT_EQ(added.out[i], -7.0f + set.out[i]) << i;
}

// Gate and up apart, and the meaning of silu in plain doubles. 40 columns are no whole number of vectors.
TEST(Fine, MultipliesUpByTheGatesSilu) {
  constexpr int64_t kColumns = 44;
  const Weights gate{BlockType::q4_1, kColumns, kInputs, 5}, up{BlockType::q8_0, kColumns, kInputs, 6};
  const std::vector<float> x = random_floats(kRoom * kInputs, 7);
  const int32_t live = kRoom;
  std::vector<float> plain;
  with_every_exec([&](Exec& exec) {
    const FineScratch scratch(kRoom, kInputs, 2 * kColumns);
    const auto product = [&](const PackedMatrix& matrix, int64_t columns, Store store) {
      std::vector<float> out(kRoom * columns);
      fine_matmul({.weights = &matrix,
                   .in = {x.data(), kRoom, kInputs, kInputs},
                   .out = {out.data(), kRoom, columns, columns},
                   .store = store,
                   .live_rows = &live,
                   .scratch = &scratch},
                  exec);
      return out;
    };
    using Join = PackedMatrix::Join;
    const PackedMatrix both(std::vector{gate.view(), up.view()}, Join::gate_and_up, exec);
    const std::vector<float> joined = product(both, kColumns, Store::silu_mul);
    const std::vector<float> apart = product(both, 2 * kColumns, Store::set);
    for (int64_t i = 0; i < kRoom * kColumns; ++i) {
      const float* row = apart.data() + i / kColumns * 2 * kColumns;
      const double g = row[i % kColumns], u = row[kColumns + i % kColumns], expected = g / (1 + std::exp(-g)) * u;
      EXPECT_NEAR(joined[i], expected, 1e-5 * std::abs(expected) + 1e-9) << i;
    }
    if (plain.empty()) plain = joined;
    EXPECT_TRUE(same_bits(joined, plain));
  });
}

TEST(Fine, RefusesWhatDoesNotFit) {
  Exec exec({.threads = 1});
  Product product(exec);
  const auto refused = [&](const FineMatmulArgs& args) { EXPECT_THROW(fine_matmul(args, exec), CheckError); };
  const int32_t many = kRoom + 1;
  FineMatmulArgs args = product.args();
  args.live_rows = &many;
  refused(args);
  args = product.args();
  args.out.dim = kOutputs - 1;
  refused(args);
  args = product.args();
  args.store = Store::silu_mul;
  refused(args);
  args = product.args();
  const FineScratch narrow(kRoom, kInputs, kOutputs - 1), low(kRoom - 1, kInputs, kOutputs);
  args.scratch = &narrow;
  refused(args);
  product.live = kRoom;
  args.scratch = &low;
  refused(args);
  const Weights dense{BlockType::f32, kOutputs, kInputs, 8};
  const PackedMatrix dense_matrix(std::vector{dense.view()}, PackedMatrix::Join::stack, exec);
  args = product.args();
  args.weights = &dense_matrix;
  refused(args);
}

}  // namespace
}  // namespace quire::ops
