// Products on the GPU, against sums in double and against themselves with other numbers of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "base/buffer.h"
#include "base/cuda.h"
#include "base/testing/expect_refused.h"
#include "ops/matmul.h"
#include "ops/matmul_choice.h"
#include "ops/matmul_testing.h"
#include "ops/packed_rows.h"
#include "ops/rms_norm.h"

namespace quire::ops {
namespace {

using Join = PackedMatrix::Join;
using testing::Weights;

quire::cuda::Stream& gpu_stream() {
  static quire::cuda::Stream stream;
  return stream;
}
Exec& product_gpu() {
  static Exec exec({.threads = 2, .stream = &gpu_stream()});
  return exec;
}

float as_bf16(float x) { return to_float(to_bf16(x)); }

// --- the layout

TEST(PackedRows, GroupsOfEightGatesAndTheirUpsAlternate) {
  EXPECT_EQ(row_count(Join::stack, 1), 16);
  EXPECT_EQ(row_count(Join::stack, 48), 48);
  EXPECT_EQ(row_count(Join::gate_and_up, 2 * 8), 16);
  EXPECT_EQ(row_count(Join::gate_and_up, 2 * 9), 32);
  EXPECT_EQ(output_in_part(Join::stack, 21), 21);
  for (const int64_t row : {16, 24}) EXPECT_EQ(output_in_part(Join::gate_and_up, row), 8);
  EXPECT_FALSE(is_up(Join::gate_and_up, 16));
  EXPECT_TRUE(is_up(Join::gate_and_up, 24));
}

class OnTheGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  }
};
class PackedMatrixCuda : public OnTheGpu {};
class MatmulCuda : public OnTheGpu {};

PackedMatrix packed_on_gpu(const std::vector<Weights>& parts, Join join) {
  std::vector<WeightView> views;
  for (const Weights& part : parts) views.push_back(part.view());
  return PackedMatrix(views, join, product_gpu());
}

std::vector<uint16_t> rows_of(const PackedMatrix& matrix) {
  std::vector<uint16_t> rows(matrix.bytes() / sizeof(uint16_t));
  gpu_stream().copy(reinterpret_cast<std::byte*>(rows.data()), reinterpret_cast<const std::byte*>(matrix.rows()),
                    matrix.bytes());
  gpu_stream().wait();
  return rows;
}

TEST_F(PackedMatrixCuda, HoldsEveryTypeAsRowsOfBf16) {
  for (const BlockType type : kBlockTypes) {
    const int64_t inputs = testing::quantised(type) ? 512 : 24;
    const Weights first(type, 5, inputs, 1), second(BlockType::bf16, 3, inputs, 2);
    const PackedMatrix matrix = packed_on_gpu({first, second}, Join::stack);
    EXPECT_EQ(matrix.forms(), Forms{.bf16 = true});
    EXPECT_EQ(matrix.precise_forms(), Forms{.bf16 = true});
    const std::vector<uint16_t> rows = rows_of(matrix);
    ASSERT_EQ(rows.size(), static_cast<size_t>(16 * inputs));
    std::vector<float> expected = first.values();
    const std::vector<float> more = second.values();
    expected.insert(expected.end(), more.begin(), more.end());
    expected.resize(rows.size());  // zeros fill the group
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], to_bf16(expected[i]).bits) << to_string(type) << i;
  }
}

TEST_F(PackedMatrixCuda, AlternatesGatesAndUpsOverSeveralPieces) {
  constexpr int64_t kOutputs = 1003, kInputs = 4096;  // 16 MB: more than the pinned memory at a time
  const Weights gate(BlockType::bf16, kOutputs, kInputs, 1), up(BlockType::bf16, kOutputs, kInputs, 2);
  const std::vector<uint16_t> rows = rows_of(packed_on_gpu({gate, up}, Join::gate_and_up));
  ASSERT_EQ(rows.size(), static_cast<size_t>(2 * 1008 * kInputs));
  const std::vector<uint16_t> zeros(kInputs);
  for (int64_t row = 0; row < 2 * 1008; ++row) {
    const int64_t output = row / 16 * 8 + row % 8;
    const Weights& part = row % 16 < 8 ? gate : up;
    const void* expected =
        output < kOutputs ? static_cast<const void*>(&part.bytes[output * kInputs * 2]) : zeros.data();
    ASSERT_EQ(std::memcmp(&rows[row * kInputs], expected, kInputs * 2), 0) << row;
  }
}

TEST_F(PackedMatrixCuda, RefusesRowsThatDoNotBeginAtWholeLines) {
  const Weights odd(BlockType::f32, 3, 12, 1);
  quire::expect_refused([&] { packed_on_gpu({odd}, Join::stack); },
                        "a GPU multiplies matrices whose inputs are a multiple of 8, not F32 [3, 12]");
}

// --- products

constexpr float kCudaUntouched = 777.0f;

// Weights, rows and outputs of one product, all rows of the room filled.
struct CudaProduct {
  CudaProduct(std::vector<Weights> of, Join join, int64_t rows, uint32_t seed = 3)
      : parts(std::move(of)),
        weights(packed_on_gpu(parts, join)),
        room(rows),
        in_memory(static_cast<size_t>(rows * weights.inputs()) * sizeof(uint16_t), Place::pinned),
        live_memory(sizeof(int32_t), Place::pinned),
        bias_memory(static_cast<size_t>(weights.outputs()) * sizeof(float), Place::pinned) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < room * weights.inputs(); ++i) in()[i] = to_bf16(normal(random)).bits;
    for (int64_t i = 0; i < weights.outputs(); ++i) bias()[i] = normal(random);
    live() = static_cast<int32_t>(room);
  }
  uint16_t* in() const { return reinterpret_cast<uint16_t*>(in_memory.data()); }
  float* bias() const { return reinterpret_cast<float*>(bias_memory.data()); }
  int32_t& live() const { return *reinterpret_cast<int32_t*>(live_memory.data()); }
  int64_t columns(Store store) const { return store == Store::silu_mul ? weights.outputs() / 2 : weights.outputs(); }

  MatmulArgs args(const Rows<float>& out, Store store, bool biased = false, float scale = 1) const {
    return {.weights = &weights,
            .in = {.forms = {.bf16 = true}, .rows = out.rows, .dim = weights.inputs(), .f32 = nullptr, .bf16 = in()},
            .out = out,
            .bias = biased ? bias() : nullptr,
            .store = store,
            .scale = scale,
            .deterministic = deterministic,
            .live_rows = &live()};
  }

  std::vector<Weights> parts;
  PackedMatrix weights;
  int64_t room;
  bool deterministic = false;
  Buffer in_memory, live_memory, bias_memory;
};

// Outputs that the GPU writes and this side reads, rows some way apart: by default so that they are no whole fours,
// which some kernels want.
constexpr int64_t kGap = 3, kGapOfFours = 4;
struct CudaOutput {
  CudaOutput(int64_t count, int64_t width, int64_t apart = kGap)
      : rows(count),
        columns(width),
        gap(apart),
        memory(static_cast<size_t>(count * (width + apart)) * sizeof(float), Place::pinned) {
    std::fill_n(data(), rows * (columns + gap), kCudaUntouched);
  }
  float* data() const { return reinterpret_cast<float*>(memory.data()); }
  Rows<float> view() const { return {data(), rows, columns, columns + gap}; }
  int64_t rows, columns, gap;
  Buffer memory;
};

CudaOutput product_on_gpu(const CudaProduct& product, int64_t room, Store store, bool biased = false, float scale = 1,
                          int64_t gap = kGap) {
  CudaOutput out(room, product.columns(store), gap);
  matmul(product.args(out.view(), store, biased, scale), product_gpu());
  product_gpu().wait();
  return out;
}

// Random numbers in memory that both sides address.
template <class T>
struct PinnedNumbers {
  PinnedNumbers(int64_t size, float spread, uint32_t seed)
      : count(size), memory(static_cast<size_t>(size) * sizeof(T), Place::pinned) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < size; ++i) {
      const float x = normal(random) * spread;
      if constexpr (sizeof(T) == 2)
        data()[i] = to_bf16(x).bits;
      else
        data()[i] = x;
    }
  }
  T* data() const { return reinterpret_cast<T*>(memory.data()); }
  int64_t count;
  Buffer memory;
};

struct ExactSum {
  double value, magnitude;
};

// Output `output`, counted over the parts, of one row.
ExactSum exact_sum_of(const CudaProduct& product, const std::vector<std::vector<float>>& values, int64_t row,
                      int64_t output) {
  size_t part = 0;
  while (output >= product.parts[part].outputs) output -= product.parts[part++].outputs;
  const int64_t inputs = product.weights.inputs();
  ExactSum sum{};
  for (int64_t k = 0; k < inputs; ++k) {
    const double term = double{to_float(bf16{product.in()[row * inputs + k]})} * values[part][output * inputs + k];
    sum.value += term;
    sum.magnitude += std::abs(term);
  }
  return sum;
}

// The parts' weights as the GPU has them.
std::vector<std::vector<float>> rounded_values(const CudaProduct& product) {
  std::vector<std::vector<float>> values;
  for (const Weights& part : product.parts) {
    values.push_back(part.values());
    for (float& x : values.back()) x = as_bf16(x);
  }
  return values;
}

// Sums of products are off by some of the last bits of their greatest magnitude.
void expect_product(const CudaProduct& product, const CudaOutput& out, Store store, bool biased, float scale) {
  const std::vector<std::vector<float>> values = rounded_values(product);
  const auto result = [&](int64_t row, int64_t output) {
    ExactSum sum = exact_sum_of(product, values, row, output);
    if (biased) sum.value += product.bias()[output];
    return ExactSum{sum.value * scale, sum.magnitude * std::abs(scale)};
  };
  for (int64_t row = 0; row < out.rows; ++row)
    for (int64_t column = 0; column < out.columns + out.gap; ++column) {
      const float got = out.data()[row * (out.columns + out.gap) + column];
      if (column >= out.columns || row >= product.live()) {
        ASSERT_EQ(got, kCudaUntouched) << row << ", " << column;
        continue;
      }
      ExactSum expected = result(row, column);
      if (store == Store::add) expected.value += kCudaUntouched;
      if (store == Store::silu_mul) {
        const ExactSum up = result(row, column + out.columns);
        const double silu = expected.value / (1 + std::exp(-expected.value));
        expected = {silu * up.value, expected.magnitude * std::abs(up.value) + std::abs(silu) * up.magnitude};
      }
      ASSERT_NEAR(got, expected.value, expected.magnitude * 1e-5 + std::abs(expected.value) * 3e-6 + 1e-5)
          << row << ", " << column;
    }
}

void expect_every_store(const CudaProduct& stacked, const CudaProduct& pair) {
  expect_product(stacked, product_on_gpu(stacked, stacked.room, Store::set), Store::set, false, 1);
  expect_product(stacked, product_on_gpu(stacked, stacked.room, Store::set, true), Store::set, true, 1);
  expect_product(stacked, product_on_gpu(stacked, stacked.room, Store::add, true, 0.25f), Store::add, true, 0.25f);
  expect_product(stacked, product_on_gpu(stacked, stacked.room, Store::add, false, -2), Store::add, false, -2);
  expect_product(pair, product_on_gpu(pair, pair.room, Store::set, true, 3), Store::set, true, 3);
  expect_product(pair, product_on_gpu(pair, pair.room, Store::silu_mul), Store::silu_mul, false, 1);
  expect_product(pair, product_on_gpu(pair, pair.room, Store::silu_mul, true), Store::silu_mul, true, 1);
}

// So many times the same part: large matrices without as many random numbers.
PackedMatrix repeated(const Weights& part, size_t times) {
  return PackedMatrix(std::vector<WeightView>(times, part.view()), Join::stack, product_gpu());
}

CudaProduct stack_of(int64_t outputs, int64_t inputs, int64_t rows) {
  std::vector<Weights> parts;
  if (outputs > 2) parts.push_back(Weights(BlockType::f16, outputs / 3, inputs, 4));
  parts.push_back(Weights(BlockType::bf16, outputs - (outputs > 2 ? outputs / 3 : 0), inputs, 5));
  return CudaProduct(std::move(parts), Join::stack, rows);
}
CudaProduct pair_of(int64_t outputs, int64_t inputs, int64_t rows) {
  return CudaProduct({Weights(BlockType::bf16, outputs, inputs, 6), Weights(BlockType::f32, outputs, inputs, 7)},
                     Join::gate_and_up, rows);
}

TEST_F(MatmulCuda, IsTheSumOfProductsForEveryShapeAndStore) {
  struct Shape {
    int64_t outputs, inputs, rows;
  };
  constexpr Shape kShapes[] = {{1, 8, 1},      {3, 24, 2},     {17, 40, 9},     {16, 64, 8},
                               {100, 72, 33},  {80, 576, 5},   {96, 1536, 3},   {70, 4096, 2},
                               {33, 14336, 3}, {130, 136, 64}, {72, 64, 65},    {66, 576, 66},
                               {20, 1536, 40}, {17, 4096, 20},  // by tiles
                               {72, 64, 130},  {66, 576, 200}, {20, 1536, 250}, {650, 4096, 2},
                               {190, 14400, 3}};  // these two are large enough for the ring
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(cat(shape.outputs, " outputs, ", shape.inputs, " inputs, ", shape.rows, " rows"));
    expect_every_store(stack_of(shape.outputs, shape.inputs, shape.rows),
                       pair_of(shape.outputs, shape.inputs, shape.rows));
  }
}

TEST_F(MatmulCuda, ServesManyRows) {
  for (const int64_t rows : {129, 600}) {
    SCOPED_TRACE(rows);
    expect_every_store(stack_of(50, 128, rows), pair_of(41, 128, rows));
  }
}

// Rooms of up to 16 rows, or what the product's own kernels take, every row of which is the same as alone.
void expect_bits_of_one_row(const CudaProduct& product, Store store) {
  ASSERT_GE(cuda::most_own_rows(product.weights), product.room);
  const CudaOutput whole = product_on_gpu(product, product.room, store);
  const auto row_bytes = static_cast<size_t>(whole.columns) * sizeof(float);
  for (const int64_t room : {1, 2, 7, 8, 9, 15}) {
    if (room > product.room) break;
    const CudaOutput out = product_on_gpu(product, room, store);
    for (int64_t row = 0; row < room; ++row)
      ASSERT_EQ(std::memcmp(out.view().row(row), whole.view().row(row), row_bytes), 0) << room << ", row " << row;
  }
  product.live() = 5;
  const CudaOutput fewer = product_on_gpu(product, product.room, store);
  for (int64_t row = 0; row < 5; ++row)
    EXPECT_EQ(std::memcmp(fewer.view().row(row), whole.view().row(row), row_bytes), 0) << row;
}

TEST_F(MatmulCuda, ARowsBitsDependOnNoOtherRow) {
  for (const int64_t inputs : {576, 1536, 4096, 14336}) {  // the last two are large enough for the ring
    SCOPED_TRACE(inputs);
    const int64_t outputs = inputs < 4096 ? 200 : 650, rows = inputs < 4096 ? 16 : 8;
    expect_bits_of_one_row(stack_of(outputs, inputs, rows), Store::set);
    expect_bits_of_one_row(pair_of(outputs / 2, inputs, rows), Store::silu_mul);
  }
}

// A room of many rows, every one of which is the same in smaller ones, and the first ones are right.
void expect_own_bits(CudaProduct product, Store store) {
  product.deterministic = true;
  const CudaOutput whole = product_on_gpu(product, product.room, store);
  const auto row_bytes = static_cast<size_t>(whole.columns) * sizeof(float);
  for (const int64_t room : {1, 8, 9, 17, 33, 65, 129, 300}) {
    if (room > product.room) break;
    const CudaOutput out = product_on_gpu(product, room, store);
    for (int64_t row = 0; row < room; ++row)
      ASSERT_EQ(std::memcmp(out.view().row(row), whole.view().row(row), row_bytes), 0) << room << ", row " << row;
    if (room == 9) expect_product(product, out, store, false, 1);
  }
}

// By small blocks; by tiles that some blocks share, in groups of rows those of a cluster; and by one that has several
// tiles.
TEST_F(MatmulCuda, DeterministicRowsHaveTheirBitsInEveryRoom) {
  expect_own_bits(stack_of(200, 576, 400), Store::set);
  expect_own_bits(stack_of(650, 4096, 1300), Store::set);
  expect_own_bits(stack_of(650, 4096, 140), Store::add);
  expect_own_bits(pair_of(325, 14336, 140), Store::silu_mul);
  CudaProduct wide = stack_of(660, 1024, 300);
  wide.deterministic = true;
  wide.weights = packed_on_gpu({wide.parts[1], wide.parts[1]}, Join::stack);
  const CudaOutput once = product_on_gpu(wide, 300, Store::set);
  wide.weights = repeated(wide.parts[1], 85);  // 147 tiles
  const CudaOutput many = product_on_gpu(wide, 300, Store::set);
  const int64_t columns = wide.parts[1].outputs;
  EXPECT_TRUE(std::isfinite(once.view().row(299)[columns - 1]));
  for (int64_t row = 0; row < 300; row += 13)
    for (const int64_t i : {0, 50, 84})
      for (int64_t c = 0; c < columns; ++c)
        ASSERT_NEAR(many.view().row(row)[i * columns + c], once.view().row(row)[c], 0.05f) << row << ", " << i;
}

// Blocks that have several tiles each give the bits of those that have one.
TEST_F(MatmulCuda, ColumnsDoNotDependOnTheNumberOfOutputs) {
  constexpr size_t kTimes = 61;  // 1678 tiles, 13 a block
  for (const int64_t rows : {3, 8}) {
    CudaProduct product = stack_of(660, 4096, rows);
    product.weights = packed_on_gpu({product.parts[1], product.parts[1]}, Join::stack);
    const int64_t once = product.parts[1].outputs;
    const CudaOutput narrow = product_on_gpu(product, rows, Store::set);
    product.weights = repeated(product.parts[1], kTimes);
    const CudaOutput wide = product_on_gpu(product, rows, Store::set);
    for (int64_t row = 0; row < rows; ++row)
      for (size_t i = 0; i < kTimes; ++i)
        ASSERT_EQ(std::memcmp(wide.view().row(row) + i * once, narrow.view().row(row), once * sizeof(float)), 0)
            << row << ", " << i;
  }
}

// The stream, where blocks have two or three tiles and the last one fewer; rows in one piece or two, stages of 16, 8
// and 4 weight rows.
TEST_F(MatmulCuda, StreamsSeveralTilesOfABlock) {
  const auto expect_streamed = [](const CudaProduct& product, Store store, bool biased) {
    SCOPED_TRACE(cat(product.weights.outputs(), " x ", product.weights.inputs()));
    product.live() = 2;
    const CudaOutput out = product_on_gpu(product, product.room, store, biased);
    if (cuda::kernel_of(product.args(out.view(), store, biased), product_gpu()) != "stream")
      GTEST_SKIP() << "the stream is Hopper's";
    expect_product(product, out, store, biased, 1);
  };
  for (const int64_t inputs : {640, 1280, 4160}) {
    const int64_t times = inputs < 1024 ? 32 : 16;  // 266 tiles, or 133
    const std::vector<Weights> parts(static_cast<size_t>(times), Weights(BlockType::bf16, 133, inputs, 8));
    expect_streamed(CudaProduct(parts, Join::stack, 3), Store::add, true);
  }
  expect_streamed(pair_of(2121, 640, 3), Store::silu_mul, true);
}

TEST_F(MatmulCuda, DeadRowsAreNeitherReadNorWritten) {
  for (const int64_t inputs : {200, 576, 1536})  // by the small kernel, by tiles, by those that a cluster shares
    for (const int64_t room : {8, 40, 64, 130})
      for (const int32_t live : {0, 1, 6}) {
        SCOPED_TRACE(cat(live, " of ", room, " rows of ", inputs));
        CudaProduct product = stack_of(72, inputs, room);
        if (room > cuda::most_own_rows(product.weights)) continue;
        product.live() = live;
        const uint16_t nan = to_bf16(std::numeric_limits<float>::quiet_NaN()).bits;
        std::fill_n(product.in() + live * inputs, (room - live) * inputs, nan);
        expect_product(product, product_on_gpu(product, room, Store::set, true), Store::set, true, 1);
      }
}

TEST_F(MatmulCuda, DeadRowsOfLargeMatricesAreNeitherReadNorWritten) {
  for (const int64_t room : {16, 100})
    for (const int32_t live : {0, 6}) {
      SCOPED_TRACE(cat(live, " of ", room, " rows"));
      CudaProduct product = stack_of(2096, 1280, room);
      product.live() = live;
      const uint16_t nan = to_bf16(std::numeric_limits<float>::quiet_NaN()).bits;
      std::fill_n(product.in() + live * 1280, (room - live) * 1280, nan);
      const CudaOutput out = product_on_gpu(product, room, Store::set, true, 1, kGapOfFours);
      if (cuda::kernel_of(product.args(out.view(), Store::set, true), product_gpu()) != "split_k")
        GTEST_SKIP() << "this GPU has no room for clusters";
      expect_product(product, out, Store::set, true, 1);
    }
}

void expect_replays(CudaProduct& product, Store store, bool bf16_out = false) {
  const CudaOutput direct(product.room, product.columns(store), kGapOfFours);
  const CudaOutput replayed(product.room, product.columns(store), kGapOfFours);
  MatmulArgs args = product.args(direct.view(), store);
  args.fusions.bf16_out = bf16_out;
  matmul(args, product_gpu());
  product_gpu().wait();
  product.live() = 0;
  args.out = replayed.view();
  gpu_stream().begin_capture();
  matmul(args, product_gpu());
  const auto graph = gpu_stream().end_capture();
  product.live() = static_cast<int32_t>(product.room);
  gpu_stream().launch(*graph);
  product_gpu().wait();
  EXPECT_EQ(std::memcmp(direct.data(), replayed.data(), direct.memory.size()), 0);
}

TEST_F(MatmulCuda, ReplaysWithTheLiveRowsOfItsTime) {
  for (const int64_t room : {16, 160}) {
    CudaProduct pair = pair_of(72, 576, room);
    expect_replays(pair, Store::silu_mul);
  }
  for (const int64_t room : {16, 100}) {
    CudaProduct large = stack_of(2096, 1280, room), large_pair = pair_of(6784, 256, room);
    expect_replays(large, Store::set);
    expect_replays(large_pair, Store::silu_mul, true);
  }
}

// --- weights of F8_E4M3

CudaProduct fp8_stack(int64_t outputs, int64_t inputs, int64_t rows, int64_t block_outputs, int64_t block_inputs) {
  return CudaProduct({testing::fp8_weights(outputs, inputs, 1, block_outputs, block_inputs),
                      testing::fp8_weights(outputs / 2 / 8 * 8, inputs, 2, block_outputs, block_inputs)},
                     Join::stack, rows);
}
CudaProduct fp8_pair(int64_t outputs, int64_t inputs, int64_t rows, int64_t block_outputs, int64_t block_inputs) {
  return CudaProduct({testing::fp8_weights(outputs, inputs, 3, block_outputs, block_inputs),
                      testing::fp8_weights(outputs, inputs, 4, block_outputs, block_inputs)},
                     Join::gate_and_up, rows);
}

TEST_F(MatmulCuda, WeightsOfF8AreMultipliedByTheirScales) {
  for (const int64_t rows : {1, 5, 8, 11, 40}) {
    SCOPED_TRACE(rows);
    for (const int64_t block : {1, 128, 100000}) {
      const int64_t block_inputs = block == 1 ? 100000 : block;
      const CudaProduct stacked = fp8_stack(200, 640, rows, block, block_inputs);
      ASSERT_TRUE(stacked.weights.is_fp8());
      expect_every_store(stacked, fp8_pair(136, 640, rows, block, block_inputs));
    }
  }
  expect_every_store(fp8_stack(48, 14336, 5, 128, 128), fp8_pair(24, 14336, 3, 128, 128));  // several passes
  expect_every_store(fp8_stack(24, 72, 5, 1, 72), fp8_pair(12, 72, 3, 1, 72));              // as bf16
}

TEST_F(MatmulCuda, ARowsBitsDependOnNoOtherRowWithWeightsOfF8) {
  for (const int64_t inputs : {256, 4096, 14336}) {
    SCOPED_TRACE(inputs);
    expect_bits_of_one_row(fp8_stack(inputs < 1000 ? 3000 : 96, inputs, 16, 128, 128), Store::set);
    expect_bits_of_one_row(fp8_pair(104, inputs, 16, 1, inputs), Store::silu_mul);
  }
}

TEST_F(MatmulCuda, DeterministicRowsHaveTheirBitsInEveryRoomWithWeightsOfF8) {
  expect_own_bits(fp8_stack(200, 640, 400, 128, 128), Store::set);
  expect_own_bits(fp8_stack(664, 4096, 300, 1, 4096), Store::add);
  expect_own_bits(fp8_pair(328, 14336, 140, 128, 128), Store::silu_mul);
}

TEST_F(MatmulCuda, WeightsOfF8ReplayWithTheLiveRowsOfTheirTime) {
  const CudaProduct product = fp8_pair(72, 640, 8, 128, 128);
  const CudaOutput direct = product_on_gpu(product, 8, Store::silu_mul), replayed(8, 72);
  product.live() = 0;
  gpu_stream().begin_capture();
  matmul(product.args(replayed.view(), Store::silu_mul), product_gpu());
  const auto graph = gpu_stream().end_capture();
  gpu_stream().launch(*graph);
  product_gpu().wait();
  EXPECT_EQ(replayed.data()[0], kCudaUntouched);
  product.live() = 6;
  gpu_stream().launch(*graph);
  product_gpu().wait();
  for (int64_t row = 0; row < 6; ++row)
    EXPECT_EQ(std::memcmp(direct.view().row(row), replayed.view().row(row), 72 * sizeof(float)), 0) << row;
  EXPECT_EQ(replayed.view().row(6)[0], kCudaUntouched);
}

TEST_F(MatmulCuda, RefusesNanAmongWeightsOfF8) {
  Weights weights = testing::fp8_weights(16, 256, 1, 16, 256);
  weights.bytes[300] = std::byte{0x7f};
  quire::expect_refused([&] { packed_on_gpu({weights}, Join::stack); },
                        "there is a NaN among the weights of F8_E4M3 [16, 256]");
}

// --- fusions

TEST_F(MatmulCuda, ResultsAreRoundedToBf16WhereTheirRowsBegin) {
  for (const int64_t room : {3, 130}) {
    const CudaProduct product = pair_of(72, 576, room);
    const CudaOutput exact = product_on_gpu(product, room, Store::silu_mul);
    const CudaOutput narrow(room, 72);
    MatmulArgs args = product.args(narrow.view(), Store::silu_mul);
    args.fusions.bf16_out = true;
    matmul(args, product_gpu());
    product_gpu().wait();
    for (int64_t row = 0; row < room; ++row)
      for (int64_t c = 0; c < 72; ++c)
        ASSERT_EQ(reinterpret_cast<const uint16_t*>(narrow.view().row(row))[c], to_bf16(exact.view().row(row)[c]).bits)
            << row << ", " << c;
  }
}

// Of many rows gates and ups are rounded before they are multiplied, where rows lie in whole pieces.
TEST_F(MatmulCuda, GatesAndUpsOfManyRowsAreBf16) {
  constexpr int64_t kColumns = 72;
  for (const int64_t room : {130, 600}) {
    const CudaProduct product = pair_of(kColumns, 576, room);
    product.live() = static_cast<int32_t>(room - 1);
    Buffer memory(static_cast<size_t>(room) * kColumns * sizeof(float), Place::pinned);
    auto* rows = reinterpret_cast<float*>(memory.data());
    std::fill_n(rows, room * kColumns, kCudaUntouched);
    MatmulArgs args = product.args({rows, room, kColumns, kColumns}, Store::silu_mul);
    args.fusions.bf16_out = true;
    matmul(args, product_gpu());
    product_gpu().wait();
    const CudaOutput exact = product_on_gpu(product, room, Store::silu_mul);
    for (int64_t row = 0; row + 1 < room; ++row)
      for (int64_t c = 0; c < kColumns; ++c) {
        const float got = to_float(bf16{reinterpret_cast<const uint16_t*>(rows + row * kColumns)[c]});
        const float expected = exact.view().row(row)[c];
        ASSERT_NEAR(got, expected, std::abs(expected) * 0x1p-5f + 1e-3f) << row << ", " << c;
      }
    EXPECT_EQ(rows[(room - 1) * kColumns], kCudaUntouched) << "a dead row";
  }
}

// The squares of rows, summed by 16 inputs, as whoever wrote the rows leaves them; and the norm's factor that they
// make.
class NormSquares {
 public:
  NormSquares(int64_t rows, int64_t inputs) : inputs_(inputs), squares_(rows * inputs / 16, 50, 11) {
    for (int64_t i = 0; i < squares_.count; ++i) squares_.data()[i] = std::abs(squares_.data()[i]);
  }
  void fuse_into(MatmulArgs& args) {
    args.fusions.squares = squares_.data();
    args.fusions.norm_eps = 0.5f;
  }
  double factor(int64_t row) {
    double sum = 0;
    for (int64_t i = 0; i < inputs_ / 16; ++i) sum += squares_.data()[row * (inputs_ / 16) + i];
    return 1 / std::sqrt(sum / static_cast<double>(inputs_) + 0.5);
  }

 private:
  const int64_t inputs_;
  PinnedNumbers<float> squares_;
};

// Of large matrices with some tens to hundreds of rows nothing is rounded before the result is.
TEST_F(MatmulCuda, GatesAndUpsOfLargeMatricesAreMultipliedAsTheyAre) {
  struct Shape {
    int64_t columns, inputs;
  };
  // On 132 multiprocessors: a tile for each, of every height, the last one not whole, or its cluster's other block
  // without one; then three for each. One step of 64 inputs and some.
  int taken = 0;
  for (const auto& [columns, inputs] : {Shape{8136, 192}, Shape{10488, 448}, Shape{12152, 256}, Shape{14336, 320},
                                        Shape{14008, 704}, Shape{29688, 64}}) {
    constexpr int64_t kMost = 256;
    const CudaProduct product = pair_of(columns, inputs, kMost);
    Buffer memory(static_cast<size_t>(kMost * columns) * sizeof(float), Place::pinned);
    auto* rows = reinterpret_cast<float*>(memory.data());
    for (const int64_t room : {9, 33, 64, 65, 128, 129, 256}) {
      SCOPED_TRACE(cat(columns, " columns, ", inputs, " inputs, ", room, " rows"));
      product.live() = static_cast<int32_t>(room - 1);
      std::fill_n(rows, room * columns, kCudaUntouched);
      MatmulArgs args = product.args({rows, room, columns, columns}, Store::silu_mul);
      args.fusions.bf16_out = true;
      if (cuda::kernel_of(args, product_gpu()) != "gates") continue;
      ++taken;
      matmul(args, product_gpu());
      product_gpu().wait();
      const CudaOutput exact = product_on_gpu(product, room, Store::silu_mul);
      for (int64_t row = 0; row + 1 < room; ++row) {
        for (int64_t c = 0; c < columns; ++c) {
          const float got = to_float(bf16{reinterpret_cast<const uint16_t*>(rows + row * columns)[c]});
          const float expected = exact.view().row(row)[c];
          ASSERT_NEAR(got, expected, std::abs(expected) * 0x1.04p-8f + 1e-5f * inputs) << row << ", " << c;
        }
        for (int64_t c = columns / 2; c < columns; ++c)
          ASSERT_EQ(rows[row * columns + c], kCudaUntouched) << "behind row " << row;
      }
      for (int64_t c = 0; c < columns; ++c) ASSERT_EQ(rows[(room - 1) * columns + c], kCudaUntouched) << "a dead row";
      if (room > cuda::most_fused_rows(product.weights)) continue;
      NormSquares squares(room, inputs);
      squares.fuse_into(args);
      matmul(args, product_gpu());
      const CudaOutput plain = product_on_gpu(product, room, Store::set);
      for (int64_t row = 0; row + 1 < room; ++row) {
        const double factor = squares.factor(row);
        for (int64_t c = 0; c < columns; ++c) {
          const double gate = plain.view().row(row)[c] * factor, up = plain.view().row(row)[columns + c] * factor;
          const double expected = gate / (1 + std::exp(-gate)) * up;
          const float got = to_float(bf16{reinterpret_cast<const uint16_t*>(rows + row * columns)[c]});
          ASSERT_NEAR(got, expected, std::abs(expected) * 0x1.04p-8 + 1e-5 * static_cast<double>(inputs))
              << row << ", " << c;
        }
      }
    }
  }
  if (taken == 0) GTEST_SKIP() << "no matrix here is cut into tiles for all multiprocessors of this GPU";
}

// Stretches of the inputs, and then their sums, give what one stretch does.
TEST_F(MatmulCuda, SumsOfLargeMatricesAreThoseOfStretches) {
  struct Shape {
    int64_t outputs, inputs;
  };
  // On 132 multiprocessors tiles of every height, 32 to 128, the last one not whole, whose stages are filled several
  // times; fewer inputs than stages, and stretches of unequal length.
  int taken = 0;
  for (const auto& [outputs, inputs] : {Shape{2096, 4160}, Shape{4000, 4160}, Shape{5120, 4160}, Shape{6720, 4160},
                                        Shape{4552, 576}, Shape{6132, 512}}) {
    CudaProduct product = stack_of(outputs, inputs, 128);
    for (const int64_t room : {9, 33, 64, 65, 128})
      for (const auto& [store, biased, scale] :
           {std::tuple(Store::set, true, 1.0f), {Store::add, false, -2.0f}, {Store::add, true, 0.25f}}) {
        SCOPED_TRACE(cat(outputs, " outputs, ", inputs, " inputs, ", room, " rows"));
        product.live() = static_cast<int32_t>(room - 1);
        CudaOutput split(room, outputs, kGapOfFours);
        product.deterministic = false;
        const MatmulArgs args = product.args(split.view(), store, biased, scale);
        if (cuda::kernel_of(args, product_gpu()) != "split_k") continue;
        ++taken;
        matmul(args, product_gpu());
        product.deterministic = true;
        ASSERT_NE(cuda::kernel_of(product.args(split.view(), store, biased, scale), product_gpu()), "split_k");
        const CudaOutput whole = product_on_gpu(product, room, store, biased, scale, kGapOfFours);
        for (int64_t row = 0; row < room; ++row)
          for (int64_t c = 0; c < outputs + kGapOfFours; ++c) {
            const float got = split.view().row(row)[c], expected = whole.view().row(row)[c];
            if (row + 1 == room || c >= outputs)
              ASSERT_EQ(got, kCudaUntouched) << row << ", " << c;
            else
              ASSERT_NEAR(got, expected, 1e-6f * static_cast<float>(inputs) + 1e-3f) << row << ", " << c;
          }
      }
  }
  if (taken == 0) GTEST_SKIP() << "no matrix here is cut into tiles for clusters that this GPU has room for";
}

TEST_F(MatmulCuda, RowsOfLargeMatricesThatDoNotLieInFoursAreMultipliedToo) {
  CudaProduct product = stack_of(4000, 1344, 40);
  const CudaOutput odd = product_on_gpu(product, 40, Store::add, true);
  const CudaOutput fours = product_on_gpu(product, 40, Store::add, true, 1, kGapOfFours);
  for (int64_t row = 0; row < 40; ++row)
    for (int64_t c = 0; c < 4000; ++c)
      ASSERT_NEAR(odd.view().row(row)[c], fours.view().row(row)[c], 3e-3f) << row << ", " << c;
  PinnedNumbers<float> squares(40 * 1344 / 16, 1, 1);
  MatmulArgs args = product.args(odd.view(), Store::set);
  args.fusions.squares = squares.data();
  if (cuda::most_fused_rows(product.weights) < 40) GTEST_SKIP() << "with 40 rows this GPU fuses nothing";
  const auto expect_nothing_fused = [&] {
    quire::expect_refused([&] { matmul(args, product_gpu()); },
                          "a product of 4000 outputs with room for 40 rows fuses nothing");
  };
  expect_nothing_fused();
  args = product.args(fours.view(), Store::add);
  args.fusions.next = {.weight = squares.data() + 1, .rows = product.in(), .squares = squares.data()};
  expect_nothing_fused();
  args.fusions.next = {.weight = squares.data(), .rows = product.in() + 2, .squares = squares.data()};
  expect_nothing_fused();
  args = product.args(fours.view(), Store::add);
  EXPECT_EQ(cuda::kernel_of(args, product_gpu()), "split_k");
  args.bias = product.bias() + 1;
  EXPECT_NE(cuda::kernel_of(args, product_gpu()), "split_k");
  args = product.args(fours.view(), Store::set);
  args.fusions.bf16_out = true;
  EXPECT_NE(cuda::kernel_of(args, product_gpu()), "split_k");
  const CudaProduct odd_outputs = stack_of(4002, 1344, 40);
  const CudaOutput wide(40, 4002, 2);
  EXPECT_NE(cuda::kernel_of(odd_outputs.args(wide.view(), Store::set), product_gpu()), "split_k");
}

// More outputs than tiles of 128 for clusters that run at once.
TEST_F(MatmulCuda, MatricesOfManyOutputsFuseNothingWithTensOfRows) {
  const Weights part(BlockType::bf16, 1000, 320, 1);
  const CudaProduct product(std::vector<Weights>(18, part), Join::stack, 16);
  if (cuda::most_fused_rows(product.weights) > 8) GTEST_SKIP() << "this GPU has room for them";
  const CudaOutput out(16, 18000, kGapOfFours);
  EXPECT_NE(cuda::kernel_of(product.args(out.view(), Store::set), product_gpu()), "split_k");
  PinnedNumbers<float> squares(16 * 320 / 16, 1, 1);
  MatmulArgs args = product.args(out.view(), Store::set);
  args.fusions.squares = squares.data();
  quire::expect_refused([&] { matmul(args, product_gpu()); },
                        "a product of 18000 outputs with room for 16 rows fuses nothing");
}

// Rows that lie apart give the bits of those that do not.
TEST_F(MatmulCuda, ReadsRowsThatLieApart) {
  for (const int64_t outputs : {50, 1300})
    for (const int64_t room : {5, 140}) {
      const CudaProduct product = stack_of(outputs, 2048, room);
      const CudaOutput dense = product_on_gpu(product, room, Store::set), apart(room, outputs);
      Buffer spread(static_cast<size_t>(room) * 4096 * sizeof(uint16_t), Place::pinned);
      auto* rows = reinterpret_cast<uint16_t*>(spread.data());
      for (int64_t row = 0; row < room; ++row) std::memcpy(rows + row * 4096, product.in() + row * 2048, 4096);
      MatmulArgs args = product.args(apart.view(), Store::set);
      args.in.bf16 = rows;
      args.in.bf16_stride = 4096;
      matmul(args, product_gpu());
      product_gpu().wait();
      for (int64_t row = 0; row < room; ++row)
        ASSERT_EQ(std::memcmp(dense.view().row(row), apart.view().row(row), outputs * sizeof(float)), 0) << row;
    }
}

// Rooms that products fuse for, with those that fall between two kernels' sizes.
constexpr int64_t kFusedRooms[] = {1, 2, 5, 8, 9, 16, 17, 33, 64, 65, 128, 129, 256}, kMostFusedRoom = 256;
// outputs, inputs: of the small kernel (one round, two, a loop), with more rows by tiles (one block or a cluster for a
// row's inputs), and at up to 8 rows of the stream
constexpr int64_t kFusedShapes[][3] = {{48, 48, 0},
                                       {80, 576, 0},
                                       {96, 1536, 0},
                                       {48, 4096, 0},
                                       {656, 4096, 0},
                                       {208, 14336, 0},
                                       {1296, 2112, 0},
                                       {4240, 640, 0},  // three tiles a block
                                       // with more rows by clusters, in tiles of 32 to 128
                                       {2096, 4160, 0},
                                       {3584, 832, 0},
                                       {4560, 576, 0},
                                       {6720, 448, 0},
                                       {96, 640, 1},
                                       {32, 14336, 1}};  // the last number: weights of F8_E4M3
CudaProduct fused_product(int64_t outputs, int64_t inputs, bool is_fp8) {
  if (!is_fp8) return stack_of(outputs, inputs, kMostFusedRoom);
  return CudaProduct({testing::fp8_weights(outputs, inputs, 1, 128, 128)}, Join::stack, kMostFusedRoom);
}

double largest_of(const float* numbers, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(double{numbers[i]}));
  return largest;
}

TEST_F(MatmulCuda, ScalesSumsByTheFactorOfTheirRow) {
  for (const auto& [outputs, inputs, is_fp8] : kFusedShapes) {
    const CudaProduct product = fused_product(outputs, inputs, is_fp8);
    for (const int64_t room : kFusedRooms) {
      if (room > cuda::most_fused_rows(product.weights)) break;
      SCOPED_TRACE(cat(outputs, " x ", inputs, ", ", room, " rows"));
      NormSquares squares(room, inputs);
      const CudaOutput plain = product_on_gpu(product, room, Store::set, false, 1, kGapOfFours);
      CudaOutput out(room, outputs, kGapOfFours);
      MatmulArgs args = product.args(out.view(), Store::set);
      squares.fuse_into(args);
      matmul(args, product_gpu());
      product_gpu().wait();
      for (int64_t row = 0; row < room; ++row) {
        const double factor = squares.factor(row);
        const float* sums = plain.view().row(row);
        // Parts of a sum, each with its rounding, may be larger than the sum: as large as others of its row.
        const double rounding = 1e-6 * factor * largest_of(sums, outputs);
        for (int64_t c = 0; c < outputs; ++c) {
          const double expected = sums[c] * factor;
          ASSERT_NEAR(out.view().row(row)[c], expected, std::abs(expected) * 1e-6 + rounding) << row << ", " << c;
        }
      }
    }
  }
}

TEST_F(MatmulCuda, ScalesGatesAndUpsByTheFactorOfTheirRow) {
  constexpr int64_t kOutputs = 136, kInputs = 576;
  const CudaProduct product = pair_of(kOutputs, kInputs, kMostFusedRoom);
  for (const int64_t room : kFusedRooms) {
    SCOPED_TRACE(room);
    product.live() = static_cast<int32_t>(room);
    NormSquares squares(room, kInputs);
    const CudaOutput plain = product_on_gpu(product, room, Store::set);
    CudaOutput out(room, kOutputs);
    MatmulArgs args = product.args(out.view(), Store::silu_mul);
    squares.fuse_into(args);
    matmul(args, product_gpu());
    product_gpu().wait();
    for (int64_t row = 0; row < room; ++row) {
      const double factor = squares.factor(row);
      for (int64_t c = 0; c < kOutputs; ++c) {
        const double gate = plain.view().row(row)[c] * factor, up = plain.view().row(row)[kOutputs + c] * factor;
        const double expected = gate / (1 + std::exp(-gate)) * up;
        ASSERT_NEAR(out.view().row(row)[c], expected, std::abs(expected) * 1e-5 + 1e-6) << row << ", " << c;
      }
    }
  }
}

// The bits of the operations that it stands for.
TEST_F(MatmulCuda, AProductOfQuantisedWeightsNormsAndQuantisesItsRow) {
  constexpr int64_t kInputs = 14336, kOutputs = 90;
  Buffer memory(2 * kInputs * sizeof(float) + sizeof(int32_t), Place::pinned);
  auto* x = reinterpret_cast<float*>(memory.data());
  float* norm = x + kInputs;
  auto* live = reinterpret_cast<int32_t*>(norm + kInputs);
  std::mt19937 random(5);
  for (int64_t i = 0; i < kInputs; ++i) {
    x[i] = std::normal_distribution<float>()(random) * 7;
    norm[i] = std::normal_distribution<float>()(random);
  }
  *live = 1;
  const ActivationBuffer buffer(1, kInputs, Place::pinned);
  for (const BlockType type : testing::kQuantised)
    for (const auto& [inputs, normed] : {std::pair(kInputs, false), std::pair(int64_t{2304}, true)}) {
      SCOPED_TRACE(cat(type, normed ? ", normed" : ""));
      const ActivationRows quantised = buffer.view(inputs, {.q8 = true});
      const Rows<const float> row{x, 1, inputs, inputs};
      const PackedMatrix matrix = packed_on_gpu({Weights(type, kOutputs, inputs, 1)}, Join::stack);
      ASSERT_TRUE(cuda::quantises_rows(matrix, 1));
      EXPECT_FALSE(cuda::quantises_rows(matrix, 2));
      const CudaOutput apart(1, kOutputs), together(1, kOutputs);
      if (normed)
        rms_norm({.in = row, .weight = norm, .eps = 1e-5f, .out = quantised, .live_rows = live}, product_gpu());
      else
        quantise({.in = row, .out = quantised, .live_rows = live}, product_gpu());
      MatmulArgs args{.weights = &matrix, .in = quantised, .out = apart.view(), .live_rows = live};
      matmul(args, product_gpu());
      args.in = {.forms = {.f32 = true}, .rows = 1, .dim = inputs, .f32 = x};
      args.out = together.view();
      args.fusions = {.norm_eps = 1e-5f, .quantise = true, .quantise_norm = normed ? norm : nullptr};
      matmul(args, product_gpu());
      product_gpu().wait();
      EXPECT_NE(apart.data()[0], kCudaUntouched);
      EXPECT_EQ(std::memcmp(apart.data(), together.data(), apart.memory.size()), 0);
    }
}

// Rings and the places of sums are used again by every replay; a row that is not alive leaves nothing.
TEST_F(MatmulCuda, OneRowOfQuantisedWeightsReplaysWithTheLiveRowOfItsTime) {
  constexpr int64_t kInputs = 2560, kOutputs = 5000;
  const PackedMatrix matrix = packed_on_gpu({Weights(BlockType::q4_k, kOutputs, kInputs, 1)}, Join::stack);
  const PinnedNumbers<float> x(kInputs, 1, 5);
  const PinnedNumbers<int32_t> live(1, 1, 6);
  const CudaOutput direct(1, kOutputs), replayed(1, kOutputs);
  MatmulArgs args{.weights = &matrix,
                  .in = {.forms = {.f32 = true}, .rows = 1, .dim = kInputs, .f32 = x.data()},
                  .out = direct.view(),
                  .live_rows = live.data()};
  args.fusions.quantise = true;
  live.data()[0] = 1;
  matmul(args, product_gpu());
  product_gpu().wait();
  args.out = replayed.view();
  gpu_stream().begin_capture();
  for (int i = 0; i < 20; ++i) matmul(args, product_gpu());
  const auto graph = gpu_stream().end_capture();
  live.data()[0] = 0;
  gpu_stream().launch(*graph);
  product_gpu().wait();
  EXPECT_EQ(replayed.data()[0], kCudaUntouched);
  live.data()[0] = 1;
  for (int i = 0; i < 5; ++i) gpu_stream().launch(*graph);
  product_gpu().wait();
  EXPECT_NE(replayed.data()[0], kCudaUntouched);
  EXPECT_EQ(std::memcmp(direct.data(), replayed.data(), direct.memory.size()), 0);
}

// x is what Store::add alone makes of it; rows past the live ones stay as they are.
TEST_F(MatmulCuda, LeavesTheStreamOfTheNextNorm) {
  for (const auto& [outputs, inputs, is_fp8] : kFusedShapes) {
    const CudaProduct product = fused_product(outputs, inputs, is_fp8);
    for (const int64_t room : kFusedRooms) {
      if (room > cuda::most_fused_rows(product.weights)) break;
      SCOPED_TRACE(cat(outputs, " x ", inputs, ", ", room, " rows"));
      product.live() = static_cast<int32_t>(std::max<int64_t>(room - 1, 1));
      const PinnedNumbers<float> weight(outputs, 1, 12), poisoned(room * outputs / 16, 1, 13);
      const PinnedNumbers<float> squares(room * outputs / 16, 1, 13);
      const PinnedNumbers<uint16_t> rows(room * outputs, 1, 14), untouched(room * outputs, 1, 14);
      const CudaOutput expected = product_on_gpu(product, room, Store::add, false, 0.25f, kGapOfFours);
      CudaOutput out(room, outputs, kGapOfFours);
      MatmulArgs args = product.args(out.view(), Store::add, false, 0.25f);
      args.fusions.next = {.weight = weight.data(), .rows = rows.data(), .squares = squares.data()};
      matmul(args, product_gpu());
      product_gpu().wait();
      for (int64_t row = 0; row < room; ++row) {
        const float* x = expected.view().row(row);
        ASSERT_EQ(std::memcmp(out.view().row(row), x, outputs * sizeof(float)), 0) << row;
        const bool alive = row < product.live();
        for (int64_t c = 0; c < outputs; ++c)
          ASSERT_EQ(rows.data()[row * outputs + c],
                    alive ? to_bf16(x[c] * weight.data()[c]).bits : untouched.data()[row * outputs + c])
              << row << ", " << c;
        for (int64_t group = 0; group < outputs / 16; ++group) {
          double sum = 0;
          for (int64_t c = 0; c < 16; ++c) sum += double{x[group * 16 + c]} * x[group * 16 + c];
          const float got = squares.data()[row * (outputs / 16) + group];
          if (alive)
            ASSERT_NEAR(got, sum, sum * 1e-6) << row << ", " << group;
          else
            ASSERT_EQ(got, poisoned.data()[row * (outputs / 16) + group]);
        }
      }
    }
  }
}

// Up to 16 rows, of large matrices 8, a row's bits, factor and stream included, are those of the row alone.
TEST_F(MatmulCuda, FusedRowsDependOnNoOtherRow) {
  for (const auto& [outputs, inputs, is_fp8] : kFusedShapes) {
    SCOPED_TRACE(cat(outputs, " x ", inputs));
    const CudaProduct product = fused_product(outputs, inputs, is_fp8);
    CudaOutput one(1, outputs);
    const bool streams = cuda::kernel_of(product.args(one.view(), Store::set), product_gpu()) == "stream";
    const int64_t most = std::min<int64_t>(streams ? 8 : 16, cuda::most_fused_rows(product.weights));
    PinnedNumbers<float> factors(most * inputs / 16, 50, 15);
    for (int64_t i = 0; i < factors.count; ++i) factors.data()[i] = std::abs(factors.data()[i]);
    const PinnedNumbers<float> weight(outputs, 1, 16), squares(2 * most * outputs / 16, 1, 17);
    const PinnedNumbers<uint16_t> rows(2 * most * outputs, 1, 18);
    const auto run = [&](int64_t room, int64_t at) {
      CudaOutput out(room, outputs);
      MatmulArgs args = product.args(out.view(), Store::add);
      args.fusions = {.squares = factors.data(),
                      .norm_eps = 1e-5f,
                      .next = {.weight = weight.data(),
                               .rows = rows.data() + at * most * outputs,
                               .squares = squares.data() + at * most * outputs / 16}};
      matmul(args, product_gpu());
      product_gpu().wait();
      return out;
    };
    const CudaOutput whole = run(most, 0);
    for (const int64_t room : kFusedRooms) {
      if (room > most) break;
      const CudaOutput fewer = run(room, 1);
      for (int64_t row = 0; row < room; ++row)
        ASSERT_EQ(std::memcmp(fewer.view().row(row), whole.view().row(row), outputs * sizeof(float)), 0) << row;
      EXPECT_EQ(std::memcmp(rows.data() + most * outputs, rows.data(), room * outputs * sizeof(uint16_t)), 0);
      EXPECT_EQ(std::memcmp(squares.data() + most * outputs / 16, squares.data(), room * outputs / 16 * sizeof(float)),
                0);
    }
  }
}

TEST_F(MatmulCuda, RefusesFusionsThatItCannotDo) {
  const CudaProduct product = stack_of(40, 64, 257);
  CudaOutput out(257, 40);
  MatmulArgs args = product.args(out.view(), Store::set);
  args.fusions.squares = out.data();
  quire::expect_refused([&] { matmul(args, product_gpu()); },
                        "a product of 40 outputs with room for 257 rows fuses nothing");
  args = product.args({out.data(), 2, 40, 43}, Store::add);
  args.fusions.next = {.weight = out.data(), .rows = product.in(), .squares = out.data()};
  quire::expect_refused([&] { matmul(args, product_gpu()); },
                        "a product of 40 outputs leaves no stream for the next norm");
}

TEST(MatmulFusions, ACpuRefusesThem) {
  const Weights weights(BlockType::f32, 16, 8, 1);
  const WeightView view = weights.view();
  const PackedMatrix matrix({&view, 1}, Join::stack, testing::team());
  float x[8] = {}, out[16];
  const int32_t live = 1;
  MatmulArgs args{.weights = &matrix,
                  .in = {.forms = {.f32 = true}, .rows = 1, .dim = 8, .f32 = x},
                  .out = {out, 1, 16, 16},
                  .live_rows = &live};
  args.fusions.squares = x;
  quire::expect_refused([&] { matmul(args, testing::team()); }, "a product on a CPU fuses nothing");
  args.fusions = {.bf16_out = true};
  quire::expect_refused([&] { matmul(args, testing::team()); }, "a product on a CPU fuses nothing");
}

TEST_F(MatmulCuda, RefusesRowsInAnotherForm) {
  const CudaProduct product = stack_of(16, 64, 2);
  CudaOutput out(2, 16);
  MatmulArgs args = product.args(out.view(), Store::set);
  args.in.forms = {.f32 = true};
  quire::expect_refused([&] { matmul(args, product_gpu()); },
                        "the activations lack a form that the weights need: bf16");
  args = product.args(out.view(), Store::set);
  ++args.in.bf16;
  quire::expect_refused([&] { matmul(args, product_gpu()); },
                        "rows of a product on a GPU begin at multiples of 16 bytes");
}

}  // namespace
}  // namespace quire::ops
