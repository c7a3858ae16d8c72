#include "device_choice.h"

#include <gtest/gtest.h>

#include "base/cuda.h"

namespace quire {
namespace {

constexpr int64_t kGigabyte = 1'000'000'000;
const GpuFacts kH200{.count = 1, .name = "NVIDIA H200", .capability = 90, .free_bytes = 140 * kGigabyte};
const GpuFacts kNone{.absence = "quire was built without CUDA's compiler"};

GpuWish wish_of(int64_t needed, int64_t there) {
  return {.fit = {.tokens = 4096, .needed = needed * kGigabyte, .there = there * kGigabyte}};
}

std::string refusal_of(const GpuFacts& gpu, const GpuWish& wish) {
  try {
    choose_device("cuda", gpu, wish);
  } catch (const UnusableDevice& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceChoice, AutoTakesAGpuThatFitsTheModel) {
  const GpuWish wish = wish_of(17, 123);
  const DeviceChoice choice = choose_device("auto", kH200, wish);
  EXPECT_EQ(choice.device, Device::cuda);
  EXPECT_EQ(choice.why, "cuda: NVIDIA H200, compute capability 9.0: the model needs 17.0 GB of 123 GB");
  EXPECT_EQ(choose_device("cuda", kH200, wish).device, Device::cuda);
  EXPECT_EQ(choose_device("cpu", kH200, wish).device, Device::cpu);
}

TEST(DeviceChoice, AutoSaysWhyItTakesTheCpu) {
  const auto why = [](const GpuFacts& gpu, const GpuWish& wish) {
    const DeviceChoice choice = choose_device("auto", gpu, wish);
    EXPECT_EQ(choice.device, Device::cpu);
    return choice.why;
  };
  EXPECT_EQ(why(kNone, {}), "cpu: quire was built without CUDA's compiler");
  EXPECT_EQ(why({.count = 1, .name = "NVIDIA T4", .capability = 75}, {}),
            "cpu: the NVIDIA T4 has compute capability 7.5, not 9.0");
  EXPECT_EQ(why(kH200, wish_of(124, 123)),
            "cpu: weights, and keys and values of 4096 tokens, need 124 GB, and the NVIDIA H200 has 123 GB for them");
  EXPECT_EQ(why(kH200, {.kv_type = Dtype::f32}), "cpu: --kv-cache-dtype f32 is for CPUs, and bf16 for GPUs");
}

TEST(DeviceChoice, AGpuThatWasAskedForAndCannotBeUsedIsRefused) {
  EXPECT_EQ(refusal_of(kNone, {}), "--device cuda: quire was built without CUDA's compiler");
  EXPECT_EQ(refusal_of(kH200, wish_of(200, 123)),
            "--device cuda: weights, and keys and values of 4096 tokens, need 200 GB, and the NVIDIA H200 has 123 GB "
            "for them");
  EXPECT_EQ(refusal_of(kH200, {.kv_type = Dtype::f32}),
            "--device cuda: --kv-cache-dtype f32 is for CPUs, and bf16 for GPUs");
}

TEST(DeviceChoice, WhyThereIsNoGpuIsKnown) {
  const GpuFacts facts = gpu_facts();
  EXPECT_EQ(facts.absence.empty(), cuda::devices() > 0);
}

}  // namespace
}  // namespace quire
