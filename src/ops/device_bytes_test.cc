#include "ops/device_bytes.h"

#include <gtest/gtest.h>

#include "base/cuda.h"
#include "ops/matmul_testing.h"

namespace quire::ops {
namespace {

using testing::fp8_weights;
using testing::Weights;
using Join = PackedMatrix::Join;

WeightView view_of(BlockType type, int64_t outputs, int64_t inputs) { return {type, nullptr, outputs, inputs}; }
int64_t bytes_of_one(const WeightView& view) { return device_bytes({&view, 1}, Join::stack); }

TEST(DeviceBytes, OfQuantisedWeightsAreNearlyThoseOfTheFile) {
  for (const BlockType type : testing::kQuantised) {
    const double file = static_cast<double>(bytes_of(type, int64_t{4096} * 4096));
    EXPECT_GE(bytes_of_one(view_of(type, 4096, 4096)), file) << to_string(type);
    EXPECT_LE(bytes_of_one(view_of(type, 4096, 4096)), file * 1.031) << to_string(type);
  }
}

TEST(DeviceBytes, OfDenseWeightsAreTwoEachWhateverTheFileHas) {
  for (const BlockType type : testing::kDense) EXPECT_EQ(bytes_of_one(view_of(type, 32, 64)), 32 * 64 * 2);
  EXPECT_EQ(bytes_of_one(view_of(BlockType::bf16, 33, 64)), 48 * 64 * 2) << "groups of 16 rows";
}

TEST(DeviceBytes, OfFp8WeightsAreOneEachAndTheirScales) {
  const Weights weights = fp8_weights(256, 512, 1, 128, 128);
  EXPECT_EQ(bytes_of_one(weights.view()), 256 / 16 * 4 * (16 * 128 + 16) + 256 * 4);
  const Weights odd = fp8_weights(256, 512, 1, 128, 64);
  EXPECT_EQ(bytes_of_one(odd.view()), 256 * 512 * 2) << "their scales do not suit: rounded to bf16";
}

TEST(DeviceBytes, PartsThatCannotLieTogetherAreWidened) {
  const WeightView gate = view_of(BlockType::q4_k, 64, 256), up = view_of(BlockType::q6_k, 64, 256),
                   dense = view_of(BlockType::bf16, 64, 256);
  const WeightView mixed[] = {gate, up}, beside[] = {gate, dense}, alike[] = {gate, gate};
  EXPECT_EQ(device_bytes(mixed, Join::stack), bytes_of_one(gate) + bytes_of_one(up));
  EXPECT_EQ(device_bytes(alike, Join::gate_and_up), 2 * bytes_of_one(gate));
  EXPECT_EQ(device_bytes(mixed, Join::gate_and_up), 128 * 256 * 2);
  EXPECT_EQ(device_bytes(beside, Join::stack), 128 * 256 * 2);
}

TEST(DeviceBytes, AreWhatAMatrixTakes) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  quire::cuda::Stream stream;
  Exec exec({.threads = 2, .stream = &stream});
  const Weights a(BlockType::q4_k, 72, 256, 1), b(BlockType::q6_k, 40, 256, 2), c(BlockType::bf16, 72, 256, 3),
      d = fp8_weights(72, 256, 4, 72, 256);
  const auto expect_as_told = [&](const std::vector<WeightView>& views, Join join) {
    EXPECT_EQ(static_cast<int64_t>(PackedMatrix(views, join, exec).bytes()), device_bytes(views, join));
  };
  expect_as_told({a.view(), b.view()}, Join::stack);
  expect_as_told({a.view(), c.view()}, Join::stack);
  expect_as_told({a.view(), a.view()}, Join::gate_and_up);
  expect_as_told({a.view(), c.view()}, Join::gate_and_up);
  expect_as_told({d.view(), d.view()}, Join::gate_and_up);
}

}  // namespace
}  // namespace quire::ops
