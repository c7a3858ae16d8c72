// What products mean: against weights as base/blocks.h reads them, in double.
#include "ops/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/cuda.h"
#include "base/testing/expect_refused.h"
#include "ops/matmul_testing.h"
#include "ops/testing_rows.h"

namespace quire::ops {
namespace {

using testing::Output;
using testing::RandomActivations;
using testing::team;
using testing::Weights;

struct Sum {
  double value = 0, magnitude = 0;  // magnitude: of the terms, which bounds the error
};

Sum exact(const Weights& weights, const std::vector<float>& values, const RandomActivations& in, int64_t row,
          int64_t column) {
  Sum sum;
  for (int64_t k = 0; k < weights.inputs; ++k) {
    const double w = values[static_cast<size_t>(column * weights.inputs + k)];
    double x = in.f32[static_cast<size_t>(row * in.dim + k)];
    if (testing::quantised(weights.type))
      x = static_cast<double>(in.scale[static_cast<size_t>(row * (in.dim / 32) + k / 32)]) *
          const_cast<RandomActivations&>(in).q_data()[row * in.q_stride + k];
    sum.value += w * x;
    sum.magnitude += std::abs(w * x);
  }
  return sum;
}

class MatmulTypes : public ::testing::TestWithParam<BlockType> {};
std::string type_name(const ::testing::TestParamInfo<BlockType>& info) { return to_string(info.param); }

TEST_P(MatmulTypes, RefIsTheProductOfTheFilesNumbers) {
  const int64_t inputs = testing::least_inputs(GetParam()) * 3, outputs = 37;
  const Weights weights(GetParam(), outputs, inputs, 1);
  const std::vector<float> values = weights.values();
  const WeightView view = weights.view();
  const PackedMatrix packed({&view, 1}, PackedMatrix::Join::stack, team());
  RandomActivations in(3, inputs, 2);
  Output out(3, outputs);
  const int32_t live = 3;
  ref::matmul({.weights = &packed, .in = in.view(packed.forms()), .out = out.view(), .live_rows = &live}, team());
  for (int64_t r = 0; r < live; ++r)
    for (int64_t c = 0; c < outputs; ++c) {
      const Sum sum = exact(weights, values, in, r, c);
      EXPECT_NEAR(out.view().row(r)[c], sum.value, sum.magnitude * 1e-5 + 1e-30) << "row " << r << ", column " << c;
    }
}

INSTANTIATE_TEST_SUITE_P(All, MatmulTypes, ::testing::ValuesIn(kBlockTypes), type_name);

// --- stores

struct World {
  World(std::vector<Weights> given, PackedMatrix::Join join, int32_t rows)
      : parts(std::move(given)), live(rows), in(rows + 2, parts[0].inputs, 11) {
    std::vector<WeightView> views;
    for (const Weights& part : parts) views.push_back(part.view());
    packed = PackedMatrix(views, join, team());
    for (int64_t c = 0; c < packed.outputs(); ++c) bias.push_back(static_cast<float>(c % 13) - 6.0f);
  }
  MatmulArgs args(Output& out, Store store, bool with_bias) {
    return {.weights = &packed,
            .in = in.view(packed.forms()),
            .out = out.view(),
            .bias = with_bias ? bias.data() : nullptr,
            .store = store,
            .live_rows = &live};
  }
  std::vector<Weights> parts;
  int32_t live;
  RandomActivations in;
  PackedMatrix packed;
  std::vector<float> bias;
};

TEST(MatmulStore, BiasIsAddedOnceAfterTheSum) {
  World world({Weights(BlockType::q4_1, 20, 64, 1)}, PackedMatrix::Join::stack, 3);
  Output plain(5, 20), biased(5, 20);
  matmul(world.args(plain, Store::set, false), team());
  matmul(world.args(biased, Store::set, true), team());
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 20; ++c)
      EXPECT_EQ(biased.view().row(r)[c], plain.view().row(r)[c] + world.bias[static_cast<size_t>(c)]);
}

TEST(MatmulStore, AddAddsToWhatIsThere) {
  World world({Weights(BlockType::f32, 33, 50, 1)}, PackedMatrix::Join::stack, 3);
  Output plain(5, 33), added(5, 33);
  matmul(world.args(plain, Store::set, true), team());
  matmul(world.args(added, Store::add, true), team());
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 33; ++c) EXPECT_EQ(added.view().row(r)[c], Output::kUntouched + plain.view().row(r)[c]);
}

TEST(MatmulStore, ResultsAreScaledBeforeTheyAreSetOrAdded) {
  World world({Weights(BlockType::q4_1, 20, 64, 1)}, PackedMatrix::Join::stack, 3);
  Output plain(5, 20), set(5, 20), added(5, 20);
  const auto scaled = [&](Output& out, Store store, float scale) {
    MatmulArgs args = world.args(out, store, true);
    args.scale = scale;
    matmul(args, team());
  };
  scaled(plain, Store::set, 1);
  scaled(set, Store::set, 0.22f);
  scaled(added, Store::add, 0.22f);
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 20; ++c) {
      const float expected = plain.view().row(r)[c] * 0.22f;
      EXPECT_EQ(set.view().row(r)[c], expected);
      EXPECT_EQ(added.view().row(r)[c], Output::kUntouched + expected);
    }
}

TEST(MatmulStore, SiluOfGateTimesUp) {
  World world({Weights(BlockType::f32, 21, 40, 1), Weights(BlockType::f32, 21, 40, 2)}, PackedMatrix::Join::gate_and_up,
              3);
  Output both(5, 42), fused(5, 21);
  matmul(world.args(both, Store::set, true), team());
  matmul(world.args(fused, Store::silu_mul, true), team());
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 21; ++c) {
      const double gate = both.view().row(r)[c], up = both.view().row(r)[21 + c];
      const double expected = gate / (1 + std::exp(-gate)) * up;
      EXPECT_NEAR(fused.view().row(r)[c], expected, std::abs(expected) * 4e-6 + 1e-30);
    }
}

TEST(MatmulStore, SiluOfExtremes) {
  const float one = 1.0f;
  const WeightView view{BlockType::f32, reinterpret_cast<const std::byte*>(&one), 1, 1}, views[] = {view, view};
  const PackedMatrix packed(views, PackedMatrix::Join::gate_and_up, team());
  const float bias[] = {0.0f, 1.0f};  // up = x + 1
  float x[] = {0.0f, 200.0f, -200.0f, 3e38f, -3e38f, std::numeric_limits<float>::quiet_NaN()}, out[6];
  const int32_t live = 6;
  const ActivationRows in{{.f32 = true}, live, 1, x};
  for (MatmulFn* product : {ref::matmul, matmul}) {
    product({.weights = &packed,
             .in = in,
             .out = {out, 6, 1, 1},
             .bias = bias,
             .store = Store::silu_mul,
             .live_rows = &live},
            team());
    EXPECT_EQ(out[0], 0.0f);
    EXPECT_EQ(out[1], 200.0f * 201.0f);
    EXPECT_EQ(out[2], 0.0f);
    EXPECT_EQ(out[3], std::numeric_limits<float>::infinity());
    EXPECT_EQ(out[4], 0.0f);
    EXPECT_TRUE(std::isnan(out[5])) << "bad numbers stay visible";
  }
}

TEST(MatmulStore, StackedPartsMayDifferInType) {
  const int64_t inputs = 256;
  World world({Weights(BlockType::q4_1, 20, inputs, 1), Weights(BlockType::q6_k, 7, inputs, 2),
               Weights(BlockType::bf16, 33, inputs, 3)},
              PackedMatrix::Join::stack, 2);
  EXPECT_EQ(world.packed.forms(), (Forms{.f32 = true, .q8 = true}));
  Output joined(4, 60);
  matmul(world.args(joined, Store::set, false), team());
  int64_t column = 0;
  for (const Weights& part : world.parts) {
    World alone({part}, PackedMatrix::Join::stack, 2);
    Output out(4, part.outputs);
    matmul(alone.args(out, Store::set, false), team());
    for (int64_t r = 0; r < 2; ++r)
      EXPECT_EQ(std::memcmp(joined.view().row(r) + column, out.view().row(r),
                            static_cast<size_t>(part.outputs) * sizeof(float)),
                0);
    column += part.outputs;
  }
}

TEST(MatmulStore, RowsPastTheLiveOnesAndColumnsPastTheLastAreNotTouched) {
  for (BlockType type : kBlockTypes) {
    World world({Weights(type, 19, 256, 1)}, PackedMatrix::Join::stack, 3);
    Output out(5, 19);
    matmul(world.args(out, Store::set, false), team());
    for (int64_t r = 0; r < 5; ++r)
      for (int64_t c = r < 3 ? 19 : 0; c < 19 + Output::kRoom; ++c)
        EXPECT_EQ(out.view().row(r)[c], Output::kUntouched) << type_name({type, 0}) << ' ' << r << ' ' << c;
    world.live = 0;
    Output none(5, 19);
    matmul(world.args(none, Store::set, false), team());
    EXPECT_TRUE(none.same_bits(Output(5, 19)));
  }
}

// --- twice the precision

// Rows of floats quantised twice, and the product's result for each store.
struct Precise {
  Precise(const std::vector<Weights>& parts, PackedMatrix::Join join, int32_t count)
      : rows(count), inputs(parts[0].inputs), x(testing::random_floats(static_cast<size_t>(rows * inputs), 4)) {
    std::vector<WeightView> views;
    for (const Weights& part : parts) views.push_back(part.view());
    packed = PackedMatrix(views, join, team());
    quantise({.in = {x.data(), rows, inputs, inputs}, .out = in(), .live_rows = &rows}, team());
  }
  ActivationRows in() const { return buffer.view(inputs, packed.precise_forms()); }
  // The same numbers as twice as many rows of 8 bits.
  ActivationRows halves() const {
    ActivationRows apart = in();
    apart.forms = {.q8 = true};
    apart.rows = 2 * rows;
    return apart;
  }
  Output product(MatmulFn* fn, const ActivationRows& of, Store store, Exec& exec = team()) const {
    Output out(of.rows, store == Store::silu_mul ? packed.outputs() / 2 : packed.outputs());
    const auto live = static_cast<int32_t>(of.rows);
    fn({.weights = &packed, .in = of, .out = out.view(), .store = store, .live_rows = &live}, exec);
    return out;
  }

  int32_t rows;
  int64_t inputs;
  std::vector<float> x;
  PackedMatrix packed;
  ActivationBuffer buffer{rows, inputs};
};

// The sum of magnitudes times what 16 bits leave of them.
TEST(MatmulPrecise, IsTwoHundredTimesCloserThanEightBits) {
  const Weights weights(BlockType::q8_0, 80, 96, 3);
  const Precise precise({weights}, PackedMatrix::Join::stack, 5);
  Output out = precise.product(matmul, precise.in(), Store::set);
  const std::vector<float> w = weights.values();
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t c = 0; c < 80; ++c) {
      double exact = 0, magnitude = 0;
      for (int64_t k = 0; k < 96; ++k) {
        const double term = double{precise.x[r * 96 + k]} * w[c * 96 + k];
        exact += term;
        magnitude += std::abs(term);
      }
      EXPECT_NEAR(out.view().row(r)[c], exact, magnitude * 1e-4 + 1e-6) << r << ", " << c;
    }
}

TEST(MatmulPrecise, AddsTheProductsOfBothHalves) {
  const Precise precise({Weights(BlockType::q4_1, 37, 96, 5)}, PackedMatrix::Join::stack, 5);
  Output halves = precise.product(ref::matmul, precise.halves(), Store::set);
  for (MatmulFn* fn : {ref::matmul, matmul}) {
    Output set = precise.product(fn, precise.in(), Store::set), added = precise.product(fn, precise.in(), Store::add);
    for (int64_t r = 0; r < 5; ++r)
      for (int64_t c = 0; c < 37; ++c) {
        const float sum = halves.view().row(2 * r)[c] + halves.view().row(2 * r + 1)[c];
        EXPECT_EQ(set.view().row(r)[c], sum);
        EXPECT_EQ(added.view().row(r)[c], Output::kUntouched + sum);
      }
  }
}

// silu of the gates' sum times the ups' sum, to the bit: as a product with the identity computes it.
TEST(MatmulPrecise, MultipliesTheSumOfUpsByTheSiluOfTheGates) {
  constexpr int64_t kColumns = 44;
  const Precise precise({Weights(BlockType::q4_1, kColumns, 96, 5), Weights(BlockType::q8_0, kColumns, 96, 6)},
                        PackedMatrix::Join::gate_and_up, 5);
  Output halves = precise.product(ref::matmul, precise.halves(), Store::set);
  const float gate_row[] = {1, 0}, up_row[] = {0, 1};
  const auto row_view = [](const float* row) {
    return WeightView{BlockType::f32, reinterpret_cast<const std::byte*>(row), 1, 2};
  };
  const WeightView identity[] = {row_view(gate_row), row_view(up_row)};
  const PackedMatrix pair(identity, PackedMatrix::Join::gate_and_up, team());
  Output got = precise.product(matmul, precise.in(), Store::silu_mul);
  const int32_t one = 1;
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t c = 0; c < kColumns; ++c) {
      const auto sum = [&](int64_t column) {
        return halves.view().row(2 * r)[column] + halves.view().row(2 * r + 1)[column];
      };
      float x[] = {sum(c), sum(kColumns + c)}, expected;
      const ActivationRows in{{.f32 = true}, 1, 2, x};
      matmul({.weights = &pair, .in = in, .out = {&expected, 1, 1, 1}, .store = Store::silu_mul, .live_rows = &one},
             team());
      EXPECT_EQ(got.view().row(r)[c], expected) << r << ", " << c;
    }
}

TEST(MatmulPrecise, DenseWeightsReadRowsAsTheyAre) {
  const Weights dense(BlockType::f32, 20, 64, 1), eight(BlockType::q8_0, 20, 64, 2);
  const WeightView views[] = {dense.view(), eight.view()};
  EXPECT_EQ(PackedMatrix({views, 1}, PackedMatrix::Join::stack, team()).precise_forms(), Forms{.f32 = true});
  EXPECT_EQ(PackedMatrix(views, PackedMatrix::Join::gate_and_up, team()).precise_forms(),
            (Forms{.f32 = true, .q8 = true}));
}

TEST(MatmulGraph, ReplayReadsTheLiveRowsOfItsTime) {
  World world({Weights(BlockType::q8_0, 40, 96, 1)}, PackedMatrix::Join::stack, 1);
  Output recorded(3, 40), direct(3, 40);
  Graph graph;
  team().begin_capture(graph);
  matmul(world.args(recorded, Store::set, false), team());
  team().end_capture();
  EXPECT_TRUE(recorded.same_bits(Output(3, 40)));
  world.live = 3;
  graph.replay(team());
  matmul(world.args(direct, Store::set, false), team());
  EXPECT_TRUE(recorded.same_bits(direct));
}

// --- errors

void expect_product_refused(const MatmulArgs& args, const std::string& text) {
  try {
    matmul(args, team());
    ADD_FAILURE() << "not refused: " << text;
  } catch (const CheckError& error) {
    EXPECT_EQ(error.what(), text);
  }
}

TEST(MatmulErrors, ArgumentsThatDoNotFitAreRefusedBeforeAnyWork) {
  World world({Weights(BlockType::q8_0, 40, 96, 1)}, PackedMatrix::Join::stack, 2);
  Output out(4, 40);
  const MatmulArgs good = world.args(out, Store::set, false);
  MatmulArgs args = good;
  args.weights = nullptr;
  expect_product_refused(args, "a product needs weights");
  args = good;
  args.store = Store::silu_mul;
  expect_product_refused(args, "silu_mul needs a gate and an up matrix");
  World pair({Weights(BlockType::q8_0, 20, 96, 1), Weights(BlockType::q8_0, 20, 96, 2)},
             PackedMatrix::Join::gate_and_up, 2);
  Output narrow(4, 20);
  args = pair.args(narrow, Store::silu_mul, false);
  args.scale = 2;
  expect_product_refused(args, "silu_mul cannot scale its results by 2.000000");
  args = good;
  args.in.dim = 64;
  expect_product_refused(args, "rows of 64 cannot meet a matrix of 96 inputs");
  args = good;
  args.in.forms = {.f32 = true, .q8 = false};
  expect_product_refused(args, "the activations lack a form that the weights need: q8");
  args = good;
  args.out.dim = 39;
  expect_product_refused(args, "an output of 39 columns does not fit a product of 40");
  args = good;
  args.out.stride = 39;
  expect_product_refused(args, "output rows of 40 overlap at stride 39");
  args = good;
  args.out.rows = 1;
  expect_product_refused(args, "2 live rows, but room for 4 in and 1 out");
  EXPECT_TRUE(out.same_bits(Output(4, 40)));
}

TEST(MatmulErrors, MixedWeightsAreNotReadAtTwiceThePrecision) {
  World world({Weights(BlockType::q8_0, 20, 64, 1), Weights(BlockType::f32, 20, 64, 2)}, PackedMatrix::Join::stack, 1);
  Output out(3, 40);
  MatmulArgs args = world.args(out, Store::set, false);
  args.in.forms = {.f32 = true, .q8x2 = true};
  expect_product_refused(args, "dense and quantised weights that are joined read q8, not q8x2");
}

TEST(MatmulErrors, AMatrixBelongsToItsDevice) {
  World world({Weights(BlockType::q8_0, 40, 96, 1)}, PackedMatrix::Join::stack, 2);
  EXPECT_EQ(world.packed.device(), Device::cpu);
  Output out(4, 40);
  const MatmulArgs args = world.args(out, Store::set, false);
  alignas(quire::cuda::Stream) std::byte nowhere[sizeof(quire::cuda::Stream)];  // no stream: whoever used it would fail
  Exec gpu(ExecOptions{.threads = 1, .stream = reinterpret_cast<quire::cuda::Stream*>(nowhere)});
  quire::expect_refused([&] { cpu::matmul(args, gpu); }, "a matrix laid out for cpu cannot be multiplied by cuda");
}

}  // namespace
}  // namespace quire::ops
