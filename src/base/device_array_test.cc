#include "base/device_array.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace quire {
namespace {

TEST(DeviceArray, HoldsACopyOfItsOwn) {
  Exec exec(ExecOptions{.threads = 1});
  std::vector<float> values = {1, 2, 3};
  DeviceArray<float> array(values, exec);
  std::fill(values.begin(), values.end(), 0.0f);
  EXPECT_EQ(std::vector<float>(array.data(), array.data() + array.size()), (std::vector<float>{1, 2, 3}));
  const DeviceArray<float> moved = std::move(array);
  EXPECT_EQ(moved.data()[2], 3);
  EXPECT_TRUE(array.empty());
}

TEST(DeviceArray, OfNothingHasNoAddress) {
  Exec exec(ExecOptions{.threads = 1});
  const DeviceArray<float> array(std::vector<float>{}, exec);
  EXPECT_TRUE(array.empty());
  EXPECT_EQ(array.data(), nullptr);
}

TEST(DeviceArray, LiesInTheMemoryOfTheGpu) {
  if (cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or the build no CUDA";
  cuda::Stream stream;
  Exec exec(ExecOptions{.threads = 1, .stream = &stream});
  const std::vector<float> values = {1, 2, 3};
  const DeviceArray<float> array(values, exec);
  std::vector<float> read(3);
  stream.copy(reinterpret_cast<std::byte*>(read.data()), reinterpret_cast<const std::byte*>(array.data()), 12);
  stream.wait();
  EXPECT_EQ(read, values);
}

}  // namespace
}  // namespace quire
