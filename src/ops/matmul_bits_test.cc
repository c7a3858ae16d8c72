// Every instruction set that works here, and the GPU for quantised weights, gives the bits of the reference: for every
// type, number of rows, number of column tiles and threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "ops/matmul.h"
#include "ops/matmul_testing.h"

namespace quire::ops {
namespace {

using testing::Output;
using testing::RandomActivations;
using testing::Weights;
using Join = PackedMatrix::Join;

struct Case {
  Isa isa;
  BlockType type;
  Device device = Device::cpu;
  bool is_gpu() const { return device == Device::cuda; }
  const char* machine() const { return is_gpu() ? "cuda" : to_string(isa); }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.machine() << ' ' << to_string(c.type); }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (Isa isa : {Isa::avx2, Isa::avxvnni, Isa::avx512, Isa::avx512vnni, Isa::avx512bf16, Isa::amx})
    for (BlockType type : kBlockTypes) all.push_back({isa, type});
  for (BlockType type : testing::kQuantised) all.push_back({Isa::plain, type, Device::cuda});
  return all;
}
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return cat(info.param.machine(), "_", info.param.type);
}

Exec& team(Isa isa, int threads) {
  static std::unique_ptr<Exec> teams[8][4];
  auto& exec = teams[static_cast<int>(isa)][threads];
  if (!exec) exec = std::make_unique<Exec>(ExecOptions{.threads = threads, .isa = isa});
  return *exec;
}

Exec& gpu() {
  static quire::cuda::Stream stream;
  static Exec exec({.threads = 2, .stream = &stream});
  return exec;
}

struct Problem {
  int64_t outputs;
  int64_t inputs;
  Join join = Join::stack;
  Store store = Store::set;
  bool bias = false;
  bool q8x2 = false;
  float scale = 1;
  bool two = false;  // of a stack: the second type follows the first
};

class MatmulBits : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto isas = available_isas();
    if (GetParam().is_gpu() && quire::cuda::devices() == 0)
      GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    if (std::find(isas.begin(), isas.end(), GetParam().isa) == isas.end())
      GTEST_SKIP() << to_string(GetParam().isa) << " does not work on this machine";
  }

  // The reference computes all rows once; every number of rows and threads must give its first rows.
  void expect_bits(const Problem& p, std::span<const int32_t> row_counts, BlockType second) {
    const Weights a(GetParam().type, p.outputs, p.inputs, 1), b(second, p.outputs, p.inputs, 2);
    const WeightView views[] = {a.view(), b.view()};
    Exec& plain = team(Isa::plain, 2);
    const PackedMatrix packed({views, size_t{p.join == Join::stack && !p.two ? 1u : 2u}}, p.join, plain);
    const int32_t most = *std::max_element(row_counts.begin(), row_counts.end());
    RandomActivations in(p.q8x2 ? 2 * most : most, p.inputs, 3);
    const Forms forms = p.q8x2 ? packed.precise_forms() : packed.forms();
    testing::Array<float> bias;
    for (int64_t c = 0; c < packed.outputs(); ++c) bias.push_back(0.25f * static_cast<float>(c));
    testing::Array<int32_t> live = {most};
    MatmulArgs args{.weights = &packed,
                    .in = in.view(forms),
                    .out = {},
                    .bias = p.bias ? bias.data() : nullptr,
                    .store = p.store,
                    .scale = p.scale,
                    .live_rows = live.data()};
    const int64_t columns = p.store == Store::silu_mul ? p.outputs : packed.outputs();
    Output expected(most, columns);
    args.out = expected.view();
    ref::matmul(args, plain);
    PackedMatrix on_gpu;
    if (GetParam().is_gpu()) {
      on_gpu = PackedMatrix({views, packed.parts().size()}, p.join, gpu());
      args.weights = &on_gpu;
    }
    for (int32_t rows : row_counts)
      for (int threads = 1; threads <= (GetParam().is_gpu() ? 1 : 3); ++threads) {
        Output out(most, columns), wanted = expected;
        const auto kept = static_cast<ptrdiff_t>(rows * (columns + Output::kRoom));
        std::fill(wanted.data.begin() + kept, wanted.data.end(), Output::kUntouched);
        live[0] = rows;
        args.out = out.view();
        Exec& exec = GetParam().is_gpu() ? gpu() : team(GetParam().isa, threads);
        matmul(args, exec);
        exec.wait();
        ASSERT_TRUE(out.same_bits(wanted)) << rows << " rows, " << threads << " threads, " << columns << " columns";
      }
  }
  // As the other of gate and up. A GPU reads both as bf16 where they differ.
  bool fits(BlockType second) const {
    return some_inputs(2) % shape_of(second).elements == 0 && (!GetParam().is_gpu() || second == GetParam().type);
  }
  int64_t some_inputs(int64_t blocks) const { return testing::least_inputs(GetParam().type) * blocks; }
};

TEST_P(MatmulBits, AreTheReferencesForAnyRowsAndThreads) {
  std::vector<int32_t> rows;
  if (!GetParam().is_gpu()) rows = {40, 64, 100, 257};  // more than kMostExactRows: see below
  for (int32_t r = 1; r <= kMostExactRows; ++r) rows.push_back(r);
  expect_bits({.outputs = 16 * 3, .inputs = some_inputs(3)}, rows, GetParam().type);
}

TEST_P(MatmulBits, AreTheReferencesForAnyNumberOfTilesAndATail) {
  const int32_t rows[] = {1, 2, 7, 19};
  for (int64_t tiles : {1, 2, 3, 5, 7, 9, 37})
    for (int64_t short_of : {0, 1, 9})
      expect_bits({.outputs = 16 * tiles - short_of, .inputs = some_inputs(1), .bias = true}, rows, GetParam().type);
}

TEST_P(MatmulBits, AreTheReferencesForAnyNumberOfBlocks) {
  const int32_t rows[] = {1, 9};
  for (int64_t blocks : {1, 2, 15, 16, 17, 18, 33})
    expect_bits({.outputs = 32, .inputs = some_inputs(blocks)}, rows, GetParam().type);
}

TEST_P(MatmulBits, AreTheReferencesForEveryStore) {
  const int32_t rows[] = {1, 5, 8, 27};
  for (bool bias : {false, true}) {
    for (float scale : {1.0f, 0.22f})
      expect_bits({.outputs = 40, .inputs = some_inputs(2), .store = Store::add, .bias = bias, .scale = scale}, rows,
                  GetParam().type);
    for (Store store : {Store::set, Store::add, Store::silu_mul})
      for (BlockType second : {GetParam().type, BlockType::q8_0, BlockType::f32})
        if (fits(second))
          expect_bits(
              {.outputs = 40, .inputs = some_inputs(2), .join = Join::gate_and_up, .store = store, .bias = bias}, rows,
              second);
  }
}

// A GPU may have kernels of its own for it, whose blocks have several units each, of an odd number, or of two types.
TEST_P(MatmulBits, AreTheReferencesWithRoomForOneRow) {
  const int32_t rows[] = {1};
  const BlockType type = GetParam().type;
  for (const int64_t blocks : {1, 2, 9, 14})
    for (const bool q8x2 : {false, true})
      expect_bits({.outputs = 72,
                   .inputs = some_inputs(blocks),
                   .store = Store::add,
                   .bias = true,
                   .q8x2 = q8x2,
                   .scale = 0.5f},
                  rows, type);
  for (const BlockType second : {BlockType::q4_k, BlockType::q6_k})
    if (some_inputs(8) % shape_of(second).elements == 0 && testing::quantised(type))
      expect_bits({.outputs = 39, .inputs = some_inputs(8), .two = true}, rows, second);
  if (fits(type))
    expect_bits({.outputs = 40, .inputs = some_inputs(2), .join = Join::gate_and_up, .store = Store::silu_mul}, rows,
                type);
  if (!GetParam().is_gpu()) return;
  for (const int64_t units : {200, 300, 413})
    expect_bits({.outputs = 16 * units, .inputs = some_inputs(3), .bias = true}, rows, type);
  // More than a ring holds, of one panel and of several.
  expect_bits({.outputs = 45, .inputs = 14336}, rows, type);
  expect_bits({.outputs = 9001, .inputs = 2304, .store = Store::add}, rows, type);
  for (const bool q8x2 : {false, true})
    expect_bits({.outputs = 8 * 300,
                 .inputs = some_inputs(2),
                 .join = Join::gate_and_up,
                 .store = Store::silu_mul,
                 .q8x2 = q8x2},
                rows, type);
}

// A GPU gives groups of 8 rows of a small matrix to teams of warps, and more rows of a large one to single warps.
TEST_P(MatmulBits, AreTheReferencesInEveryRoomOfSmallAndLargeMatrices) {
  const BlockType type = GetParam().type;
  if (!GetParam().is_gpu()) GTEST_SKIP() << "a CPU chooses by live rows alone";
  for (const int32_t room : {2, 4, 8, 9, 16, 17, 32})
    for (const int64_t outputs : {9, 16 * 36, 16 * 70 - 5, 16 * 300}) {
      const int32_t rows[] = {room, 1, room / 2 + 1};
      for (const bool q8x2 : {false, true})
        expect_bits({.outputs = outputs,
                     .inputs = some_inputs(5),
                     .store = Store::add,
                     .bias = true,
                     .q8x2 = q8x2,
                     .scale = 0.5f},
                    rows, type);
      expect_bits({.outputs = outputs, .inputs = some_inputs(2), .join = Join::gate_and_up, .store = Store::silu_mul},
                  rows, type);
    }
}

TEST_P(MatmulBits, AreTheReferencesAtTwiceThePrecision) {
  const int32_t rows[] = {1, 2, 5, 7, 8, 20, 129};
  for (Store store : {Store::set, Store::add})
    expect_bits({.outputs = 37, .inputs = some_inputs(2), .store = store, .bias = true, .q8x2 = true}, rows,
                GetParam().type);
  for (BlockType second : {GetParam().type, BlockType::q8_0, BlockType::f32})
    if (fits(second))
      expect_bits(
          {.outputs = 40, .inputs = some_inputs(2), .join = Join::gate_and_up, .store = Store::silu_mul, .q8x2 = true},
          rows, second);
}

INSTANTIATE_TEST_SUITE_P(All, MatmulBits, ::testing::ValuesIn(cases()), case_name);

// With room for many rows a GPU reads both sides as bf16: no longer the reference's bits, but near them.
class MatmulDequantised : public ::testing::TestWithParam<BlockType> {
 protected:
  static constexpr int32_t kRoom = kMostExactRows + 60, kLive = kMostExactRows + 11;
  static constexpr int64_t kOutputs = 37, kInputs = 512;
  // The sum of magnitudes |w x|, of which each may be off by two roundings to bf16.
  static constexpr double kTolerance = 0x1p-7;

  void SetUp() override {
    if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  }

  Output product(MatmulFn* product_fn, Join join, Store store, bool biased, Exec& exec) {
    const WeightView views[] = {first.view(), second.view()};
    const PackedMatrix packed(views, join, exec);
    const testing::Array<int32_t> live = {kLive};
    Output out(kRoom, store == Store::silu_mul ? kOutputs : 2 * kOutputs);
    product_fn({.weights = &packed,
                .in = in.view({.q8 = true}),
                .out = out.view(),
                .bias = biased ? bias.data() : nullptr,
                .store = store,
                .scale = store == Store::silu_mul ? 1.0f : 0.5f,
                .live_rows = live.data()},
               exec);
    exec.wait();
    return out;
  }

  // How far output `output` of both matrices may be off.
  double slack(int64_t row, int64_t output) {
    const std::vector<float>& weights = output < kOutputs ? first_values : second_values;
    double magnitudes = 0;
    for (int64_t k = 0; k < kInputs; ++k) {
      const double x = double{in.scale[row * (kInputs / 32) + k / 32]} * in.q_data()[row * in.q_stride + k];
      magnitudes += std::abs(x * weights[output % kOutputs * kInputs + k]);
    }
    return kTolerance * magnitudes;
  }

  Weights first{GetParam(), kOutputs, kInputs, 1}, second{GetParam(), kOutputs, kInputs, 2};
  std::vector<float> first_values = first.values(), second_values = second.values();
  RandomActivations in{kRoom, kInputs, 3};
  testing::Array<float> bias = testing::random_array(2 * kOutputs, 4);
};

TEST_P(MatmulDequantised, ProductsAreNearTheReferences) {
  for (const bool biased : {false, true})
    for (const Store store : {Store::set, Store::add}) {
      Output expected = product(ref::matmul, Join::stack, store, biased, team(Isa::plain, 2));
      for (const Join join : {Join::stack, Join::gate_and_up}) {
        Output got = product(matmul, join, store, biased, gpu());
        for (int64_t row = 0; row < kLive; ++row)
          for (int64_t c = 0; c < 2 * kOutputs; ++c)
            ASSERT_NEAR(got.view().row(row)[c], expected.view().row(row)[c], slack(row, c) + 1e-4) << row << ", " << c;
      }
    }
}

TEST_P(MatmulDequantised, SiluIsNearTheReferences) {
  Output sums = product(ref::matmul, Join::stack, Store::set, false, team(Isa::plain, 2));
  Output got = product(matmul, Join::gate_and_up, Store::silu_mul, false, gpu());
  for (int64_t row = 0; row < kLive; ++row)
    for (int64_t c = 0; c < kOutputs; ++c) {
      const double gate = 2.0 * sums.view().row(row)[c], up = 2.0 * sums.view().row(row)[kOutputs + c];
      const double silu = gate / (1 + std::exp(-gate)), gate_slack = slack(row, c), up_slack = slack(row, kOutputs + c);
      const double tolerance = 1.1 * gate_slack * (std::abs(up) + up_slack) + std::abs(silu) * up_slack;
      ASSERT_NEAR(got.view().row(row)[c], silu * up, tolerance + 1e-3) << row << ", " << c;
    }
}

INSTANTIATE_TEST_SUITE_P(cuda, MatmulDequantised, ::testing::ValuesIn(testing::kQuantised),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire::ops
