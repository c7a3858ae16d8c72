// What becomes of the engine when CUDA refuses: calls of its runtime fail as if the device, or its memory, had.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <mutex>

#include "cuda_call_counter.h"
#include "engine/engine.h"
#include "model/testing.h"

namespace quire::engine {
namespace {

using quire::testing::fail_cuda_call;

class GpuFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    stream_ = std::make_unique<cuda::Stream>();
    exec_ = std::make_unique<Exec>(ExecOptions{.threads = 2, .stream = stream_.get()});
    load();
  }
  void TearDown() override { fail_cuda_call({}); }
  void load() {
    const model::testing::TinyFile file(
        {.width = 128, .ffn_width = 192, .heads = 4, .kv_heads = 2, .head_dim = 64, .type = BlockType::bf16});
    model_ = std::make_unique<model::Model>(file.path(), *exec_);
  }
  static EngineOptions options() {
    EngineOptions made;
    made.max_total_tokens = 4096;
    made.max_running_requests = 4;
    made.prefill_chunk = 64;
    return made;
  }
  Request request(uint64_t seed) const {
    return {.prompt = model::testing::random_ids(30, model_->config().vocabulary, seed), .max_new_tokens = 200};
  }
  std::string refusal() {
    try {
      Engine engine(*model_, options(), *exec_);
    } catch (const cuda::OutOfMemory& error) {
      return error.what();
    }
    return "none";
  }

  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<Exec> exec_;
  std::unique_ptr<model::Model> model_;
};

TEST_F(GpuFaults, AFailedLaunchEndsEverybodyAndTheyAreTold) {
  std::promise<void> broken;
  EngineOptions used = options();
  used.on_broken = [&] { broken.set_value(); };
  std::mutex mutex;
  std::map<RequestId, Output> ends;
  Engine engine(*model_, used, *exec_);
  for (uint64_t i = 0; i < 3; ++i)
    engine.submit(request(i), [&](const Output& output) {
      const std::lock_guard lock(mutex);
      if (output.finish != Finish::none) ends[output.id] = output;
    });
  fail_cuda_call({"cudaGraphLaunch", 20, cudaErrorIllegalAddress, true});
  engine.start();
  broken.get_future().wait();
  const std::lock_guard lock(mutex);
  ASSERT_EQ(ends.size(), 3u);
  for (const auto& [id, end] : ends) {
    EXPECT_EQ(end.finish, Finish::failed);
    EXPECT_NE(end.error.find("an illegal memory access"), std::string::npos) << end.error;
    EXPECT_NE(end.error.find("in flight: step "), std::string::npos) << end.error;
  }
  EXPECT_FALSE(engine.accepts());
}

TEST_F(GpuFaults, MemoryThatIsMissingSaysWhatToLowerAndNothingIsLost) {
  quire::testing::forget_cuda_calls();
  EXPECT_EQ(refusal(), "none");
  const auto calls = quire::testing::cuda_calls();
  for (const char* name : {"cudaMalloc", "cudaHostAlloc", "cudaGraphInstantiate"}) {
    ASSERT_GT(calls.at(name), 3) << name;
    for (const int number : {1, calls.at(name) / 2, calls.at(name)}) {
      fail_cuda_call({name, number, cudaErrorMemoryAllocation});
      const std::string said = refusal();
      EXPECT_NE(said.find("lower --mem-fraction-static"), std::string::npos) << name << " " << number << ": " << said;
    }
  }
  fail_cuda_call({});
  EXPECT_EQ(refusal(), "none");
}

// A step's own lists may want more pinned memory: here for the first row that is scored.
TEST_F(GpuFaults, AStepWithoutMemoryFailsAloneAndTheNextIsRight) {
  std::map<RequestId, Output> ends;
  const auto listener = [&](const Output& output) {
    if (output.finish != Finish::none) ends[output.id] = output;
  };
  Engine engine(*model_, options(), *exec_);
  const auto finish = [&](const Request& asked) {
    const RequestId id = engine.submit(asked, listener);
    while (engine.step()) {
    }
    return ends[id];
  };
  Request scored = request(1);
  scored.max_new_tokens = 0;
  scored.prompt_logprobs_from = 0;
  scored.top_logprobs = 5;
  fail_cuda_call({"cudaHostAlloc", 1, cudaErrorMemoryAllocation});
  const Output failed = finish(scored);
  EXPECT_EQ(failed.finish, Finish::failed);
  EXPECT_NE(failed.error.find("cannot pin"), std::string::npos) << failed.error;
  EXPECT_TRUE(engine.accepts());
  const Output first = finish(scored), again = finish(scored);
  EXPECT_EQ(first.finish, Finish::length);
  ASSERT_EQ(first.prompt_logprobs.size(), scored.prompt.size());
  for (size_t i = 1; i < scored.prompt.size(); ++i)
    EXPECT_EQ(first.prompt_logprobs[i].logprob, again.prompt_logprobs[i].logprob) << i;
}

// What is launched behind a function of the host that does not return never begins, as behind a kernel that hangs. It
// takes as long as the engine's patience.
TEST_F(GpuFaults, AGpuThatHangsIsGivenUpAndEverybodyIsTold) {
  std::promise<void> broken, released;
  EngineOptions used = options();
  used.on_broken = [&] { broken.set_value(); };
  std::promise<Output> ended;
  Engine engine(*model_, used, *exec_);
  engine.submit(request(1), [&](const Output& output) {
    if (output.finish != Finish::none) ended.set_value(output);
  });
  const cudaHostFn_t hang = [](void* until) { static_cast<std::promise<void>*>(until)->get_future().wait(); };
  ASSERT_EQ(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream_->handle()), hang, &released), cudaSuccess);
  engine.start();
  EXPECT_EQ(broken.get_future().wait_for(std::chrono::minutes(4)), std::future_status::ready);
  const Output end = ended.get_future().get();
  EXPECT_EQ(end.finish, Finish::failed);
  EXPECT_NE(end.error.find("the GPU has not answered for 6"), std::string::npos) << end.error;
  EXPECT_NE(end.error.find("in flight: step "), std::string::npos) << end.error;
  released.set_value();
}

TEST_F(GpuFaults, KeysOfF32AreRefusedWithWhatThereIs) {
  EngineOptions used = options();
  used.kv_type = Dtype::f32;
  try {
    Engine engine(*model_, used, *exec_);
    FAIL() << "it was made";
  } catch (const CheckError& error) {
    EXPECT_NE(std::string(error.what()).find("on a GPU they are bf16"), std::string::npos) << error.what();
  }
}

TEST_F(GpuFaults, WeightsThatDoNotFitAreOutOfMemory) {
  fail_cuda_call({"cudaMalloc", 3, cudaErrorMemoryAllocation});
  EXPECT_THROW(load(), cuda::OutOfMemory);
  fail_cuda_call({});
  load();
}

}  // namespace
}  // namespace quire::engine
