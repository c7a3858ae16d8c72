#include "base/device_wait.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace quire::cuda {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr WaitTimes kShort{.patience = 200ms, .spinning = 5ms, .pause = 1ms};

// Stands for a GPU: what it says is there, and all that it was given is over, so long after the test has begun.
class FakeGpu {
 public:
  static constexpr Clock::duration kNever = std::chrono::hours(1);

  explicit FakeGpu(Clock::duration answers, Clock::duration ends = kNever) : answers_(answers), ends_(ends) {}

  bool wait(const WaitTimes& times = kShort) {
    return wait_for_device([&] { return ++looks_, has_passed(answers_); },
                           [&] {
                             ++asked_;
                             check(!faults_, "an illegal memory access");
                             return has_passed(ends_);
                           },
                           times);
  }
  void fault() { faults_ = true; }
  Clock::duration waited() const { return Clock::now() - start_; }
  int looks() const { return looks_; }
  int asked() const { return asked_; }

 private:
  bool has_passed(Clock::duration time) const { return waited() >= time; }

  const Clock::time_point start_ = Clock::now();
  const Clock::duration answers_, ends_;
  bool faults_ = false;
  int looks_ = 0, asked_ = 0;
};

TEST(DeviceWait, WhatComesSoonIsSpunForAndNobodyElseIsAsked) {
  FakeGpu gpu(1ms);
  EXPECT_TRUE(gpu.wait({.patience = 10s, .spinning = 5s}));
  EXPECT_EQ(gpu.asked(), 0);
}

TEST(DeviceWait, WhatTakesLongIsLookedAtNowAndThen) {
  FakeGpu gpu(100ms);
  EXPECT_TRUE(gpu.wait({.patience = 60s, .spinning = 0ms, .pause = 2ms}));
  EXPECT_LE(gpu.looks(), 52);
  EXPECT_GE(gpu.asked(), 1);
}

TEST(DeviceWait, AGpuThatHangsIsGivenUp) {
  FakeGpu gpu(FakeGpu::kNever);
  try {
    gpu.wait({.patience = 1100ms, .spinning = 5ms, .pause = 1ms});
    FAIL() << "it was waited for";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.what(), std::string("the GPU has not answered for 1 s"));
  }
  EXPECT_GE(gpu.waited(), 1100ms);
  EXPECT_LT(gpu.waited(), 30s);
}

TEST(DeviceWait, AFaultIsToldAtOnce) {
  FakeGpu gpu(FakeGpu::kNever);
  gpu.fault();
  EXPECT_THROW(gpu.wait({.patience = 60s, .spinning = 5ms}), CheckError);
  EXPECT_LT(gpu.waited(), 30s);
}

TEST(DeviceWait, AGpuThatIsDoneWithoutAnAnswerIsNotWaitedFor) {
  EXPECT_FALSE(FakeGpu(FakeGpu::kNever, 0ms).wait());
  EXPECT_TRUE(FakeGpu(20ms, 20ms).wait()) << "the answer came first";
}

TEST(DeviceWait, RowsOfPromptsHaveMorePatience) {
  EXPECT_EQ(patience_for(0), 60s);
  EXPECT_GE(patience_for(8192), 3min);
  EXPECT_LT(patience_for(256), 70s) << "a step of decodes";
}

}  // namespace
}  // namespace quire::cuda
