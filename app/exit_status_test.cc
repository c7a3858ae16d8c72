#include "exit_status.h"

#include <gtest/gtest.h>

#include <iostream>
#include <new>

#include "base/cuda.h"
#include "device_choice.h"
#include "engine/engine.h"
#include "engine/step_device.h"
#include "model/testing.h"
#include "model_path.h"
#include "session.h"

namespace quire {
namespace {

template <class Error>
int status_of(const Error& error) {
  return exit_status([&]() -> int { throw error; });
}

TEST(ExitStatus, IsTheCommandsWhereNothingIsThrown) {
  EXPECT_EQ(exit_status([] { return 0; }), 0);
  EXPECT_EQ(exit_status([] { return 130; }), 130);
}

TEST(ExitStatus, TellsWhatWasAskedForInVainFromWhatFailed) {
  EXPECT_EQ(status_of(BadModel("no model")), 2);
  EXPECT_EQ(status_of(UnusableDevice("no GPU")), 2);
  EXPECT_EQ(status_of(cuda::OutOfMemory("lower --max-total-tokens")), 2);
  EXPECT_EQ(status_of(cuda::DeviceError("an illegal memory access")), 1);
  EXPECT_EQ(status_of(CheckError("the engine has broken down")), 1);
  EXPECT_EQ(status_of(std::bad_alloc()), 1);
}

TEST(ExitStatus, WhatIsSaidIsOneLine) {
  ::testing::internal::CaptureStderr();
  status_of(cuda::DeviceError("the device failed:\nan illegal memory access"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "quire: the device failed: an illegal memory access\n");
}

// --- of an engine whose device fails, or has no memory

class FailingDevice : public engine::StepDevice {
 public:
  void launch(engine::Step&) override { throw cuda::DeviceError("the GPU has not answered"); }
  void draw(engine::Step&) override {}
  void finish(engine::Step&) override {}
};

class ExitStatusOfEngines : public ::testing::Test {
 protected:
  ExitStatusOfEngines() : file_({}), exec_({.threads = 1}), model_(file_.path(), exec_) {}

  const model::testing::TinyFile file_;
  Exec exec_;
  const model::Model model_;
};

TEST_F(ExitStatusOfEngines, MissingMemoryAtLoadIsBadInput) {
  const auto make_device = [](const engine::StepDeviceParts&) -> std::unique_ptr<engine::StepDevice> {
    throw cuda::OutOfMemory("cannot allocate 5 bytes on the device");
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(exit_status([&] { return engine::Engine(model_, {}, exec_, make_device).step(), 0; }), 2);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("lower --mem-fraction-static"), std::string::npos);
}

TEST_F(ExitStatusOfEngines, ADeviceThatFailsIsAFailure) {
  const auto make_device = [](const engine::StepDeviceParts&) { return std::make_unique<FailingDevice>(); };
  engine::Engine engine(model_, {}, exec_, make_device);
  engine.submit({.prompt = {1}, .max_new_tokens = 1}, [](const engine::Output&) {});
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(exit_status([&] { return engine.step(), 0; }), 1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("the GPU has not answered; in flight: step "),
            std::string::npos);
}

// --- where nothing may be waited for

struct NeverFreed {
  ~NeverFreed() {
    for (;;) {
    }
  }
};

TEST(ExitStatusDeathTest, EndAtOnceSaysItAndWaitsForNobody) {
  EXPECT_EXIT(
      {
        const NeverFreed memory;
        end_at_once(cuda::DeviceError("the GPU has not answered"));
      },
      ::testing::ExitedWithCode(1), "^quire: the GPU has not answered\n$");
}

TEST(ExitStatusDeathTest, EndAtOnceKeepsWhatWasWritten) {
  EXPECT_EXIT(
      {
        std::fflush(stdout);
        dup2(2, 1);
        std::printf("half an answer\n");
        end_at_once(cuda::DeviceError("gone"));
      },
      ::testing::ExitedWithCode(1), "half an answer");
}

}  // namespace
}  // namespace quire
