#include "device_choice.h"

#include <gtest/gtest.h>

#include "usage_error.h"

namespace quire {
namespace {

constexpr int64_t kGigabyte = 1'000'000'000;
const GpuFacts kH200{.count = 1, .name = "NVIDIA H200", .capability = 90, .free_bytes = 140 * kGigabyte};

std::string refusal_of(const GpuFacts& gpu, int64_t weight_bytes) {
  try {
    choose_device("cuda", gpu, weight_bytes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceChoice, AutoTakesAGpuThatFitsTheModel) {
  const DeviceChoice choice = choose_device("auto", kH200, 16 * kGigabyte);
  EXPECT_EQ(choice.device, Device::cuda);
  EXPECT_EQ(choice.why, "cuda: NVIDIA H200, compute capability 9.0");
  EXPECT_EQ(choose_device("cuda", kH200, 16 * kGigabyte).device, Device::cuda);
  EXPECT_EQ(choose_device("cpu", kH200, 16 * kGigabyte).device, Device::cpu);
}

TEST(DeviceChoice, AutoSaysWhyItTakesTheCpu) {
  EXPECT_EQ(choose_device("auto", {}, 1).why, "cpu: this machine has no GPU, or quire was built without CUDA");
  EXPECT_EQ(choose_device("auto", {.count = 1, .name = "NVIDIA T4", .capability = 75, .free_bytes = 0}, 1).why,
            "cpu: the NVIDIA T4 has compute capability 7.5, not 9.0");
  EXPECT_EQ(choose_device("auto", kH200, 140 * kGigabyte).device, Device::cpu);
}

TEST(DeviceChoice, AGpuThatWasAskedForAndCannotBeUsedIsRefused) {
  EXPECT_EQ(refusal_of({}, 1), "--device cuda: this machine has no GPU, or quire was built without CUDA");
  EXPECT_EQ(refusal_of(kH200, 200 * kGigabyte),
            "--device cuda: the weights take 200 GB, and 140 GB of the NVIDIA H200's memory are free");
}

}  // namespace
}  // namespace quire
