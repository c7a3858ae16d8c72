#include "engine/engine.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>

#include "base/check.h"
#include "base/testing/expect_refused.h"
#include "engine/ngram_drafter.h"
#include "engine/runner.h"
#include "engine/step_device.h"
#include "engine/testing.h"
#include "engine/testing_schedules.h"
#include "model/testing.h"
#include "model/testing_eagle.h"

namespace quire::engine {
namespace {

using model::testing::random_ids;
using model::testing::TinyFile;
using model::testing::TinyModel;
using Tokens = std::vector<int32_t>;

constexpr int32_t kContext = 256;

// These tests are the CPU's, and where they do not compare the bits of different batches, with QUIRE_TEST_DEVICE=cuda a
// GPU's (tests/gpu).
bool is_on_gpu() {
  const char* const device = std::getenv("QUIRE_TEST_DEVICE");
  return device && std::string_view(device) == "cuda";
}
ExecOptions exec_options(int threads) {
  static const auto stream = is_on_gpu() ? std::make_unique<cuda::Stream>() : nullptr;
  return {.threads = threads, .stream = stream.get()};
}

TinyModel tiny(BlockType type = BlockType::f32) { return {.context = kContext, .type = type}; }

using testing::HashMask;
using testing::knowing_drafter;
using Heard = testing::HeardBits;

class Stepped : public testing::SteppedEngine {
 public:
  Stepped(const model::Model& model, const EngineOptions& options, int threads = 2)
      : SteppedEngine(model, options, exec_options(threads)) {}
};

EngineOptions small_options() {
  EngineOptions options;
  options.max_total_tokens = 4 * kContext;
  options.max_running_requests = 8;
  options.max_queued_requests = 100;
  return options;
}

Request greedy(Tokens prompt, int32_t max_new_tokens) {
  return {
      .prompt = std::move(prompt), .sampling = {.temperature = 0}, .max_new_tokens = max_new_tokens, .top_logprobs = 2};
}

void expect_all_pages_are_back(const EngineStats& stats) {
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
}

class EngineTest : public ::testing::Test {
 protected:
  static const model::Model& model() {
    static Exec exec(exec_options(2));
    static const TinyFile file(tiny());
    static const model::Model made(file.path(), exec);
    return made;
  }
  static Tokens ids(int32_t count, uint64_t seed) { return random_ids(count, model().config().vocabulary, seed); }
};

TEST_F(EngineTest, GeneratesAndCounts) {
  Stepped stepped(model(), small_options());
  EXPECT_FALSE(stepped.engine().step()) << "nothing to do";
  const RequestId id = stepped.submit(greedy(ids(40, 1), 10));
  EXPECT_EQ(stepped.engine().stats().queued, 1);
  EXPECT_TRUE(stepped.engine().step());
  EXPECT_EQ(stepped.engine().stats().running, 1);
  EXPECT_EQ(stepped.engine().stats().queued, 0);
  stepped.drain();
  const Heard& heard = stepped.heard(id);
  EXPECT_EQ(heard.tokens.size(), 10u);
  EXPECT_EQ(heard.top.size(), 20u);
  EXPECT_EQ(heard.top[0].first, heard.tokens[0]) << "greedy takes the likeliest";
  EXPECT_EQ(heard.top[0].second, heard.logprobs[0]);
  EXPECT_EQ(heard.finish, Finish::length);
  const EngineStats stats = stepped.engine().stats();
  EXPECT_EQ(stats.steps, 10);
  EXPECT_EQ(stats.prompt_tokens, 40);
  EXPECT_EQ(stats.generated_tokens, 10);
  EXPECT_EQ(stats.started, 1);
  EXPECT_EQ(stats.finished, 1);
  EXPECT_EQ(stats.running + stats.queued, 0);
  EXPECT_EQ(stats.total_pages, 4 * kContext / 16);
  EXPECT_EQ(stats.cached_pages, 3) << "49 computed tokens";
  EXPECT_EQ(stats.evictable_pages, 3);
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
  EXPECT_GT(stats.schedule_us, 0);
}

TEST_F(EngineTest, EndsAtStopIdsTheContextAndWithoutATokenToDraw) {
  Stepped stepped(model(), small_options());
  const Heard all = stepped.finish(greedy(ids(40, 1), 20));
  Request stops = greedy(ids(40, 1), 20);
  stops.stop_ids = {all.tokens[5]};
  const Heard stopped = stepped.finish(stops);
  EXPECT_EQ(stopped.finish, Finish::stop);
  EXPECT_EQ(stopped.tokens.back(), all.tokens[5]);
  EXPECT_TRUE(stopped.begins(all));
  EXPECT_GT(stopped.cached, 0);
  const Heard to_the_end = stepped.finish(greedy(ids(200, 2), -1));
  EXPECT_EQ(to_the_end.finish, Finish::length);
  EXPECT_EQ(to_the_end.tokens.size(), kContext - 200u);
  const Heard nothing = stepped.finish(greedy(ids(40, 3), 0));
  EXPECT_EQ(nothing.finish, Finish::length);
  EXPECT_TRUE(nothing.tokens.empty());
}

TEST_F(EngineTest, RefusesWhatCanNeverRun) {
  EngineOptions options = small_options();
  options.max_total_tokens = 64;
  Stepped stepped(model(), options);
  const auto submitting = [&](const Request& request) { return [&, request] { stepped.submit(request); }; };
  expect_refused(submitting(greedy({}, 1)), "the prompt is empty");
  expect_refused(submitting(greedy({1, 320}, 1)), "token 320 of the prompt is outside the vocabulary of 320");
  expect_refused(submitting(greedy({-1}, 1)), "token -1");
  expect_refused(submitting(greedy(ids(256, 1), 1)), "in the context of 256");
  expect_refused(submitting(greedy(ids(64, 1), 1)), "in the pool of 64");
  expect_refused(submitting(greedy({1}, -2)), "max_new_tokens is -2");
  Request request = greedy({1}, 1);
  request.sampling.top_p = 0;
  expect_refused(submitting(request), "top_p");
  request = greedy({1}, 1);
  request.top_logprobs = 321;
  expect_refused(submitting(request), "top_logprobs is 321");
  request = greedy({1}, 1);
  request.logprob_ids = {3, 320};
  expect_refused(submitting(request), "logprobs of token 320");
  request = greedy({1}, 1);
  request.priority = kMostPriority + 1;
  expect_refused(submitting(request), "priority is 101, not from -100 to 100");
  request = greedy({1}, 1);
  request.min_new_tokens = -1;
  expect_refused(submitting(request), "min_new_tokens is -1");
  request = greedy({1}, 1);
  request.prompt_logprobs_from = -2;
  expect_refused(submitting(request), "prompt_logprobs_from is -2");
  request = greedy({1}, 1);
  request.pooling = Pooling::last;
  expect_refused(submitting(request), "a pooled request generates no tokens");
  request.max_new_tokens = 0;
  request.prompt_logprobs_from = 0;
  expect_refused(submitting(request), "has no prompt logprobs");
  expect_refused([&] { stepped.engine().submit(greedy({1}, 1), nullptr); }, "without a listener");
  options.vocabulary = 321;
  expect_refused([&] { Stepped(model(), options); }, "a vocabulary of 321 tokens, for a model of 320");
  options.context = kContext + 1;
  expect_refused([&] { Stepped(model(), options); }, "a context of 257 tokens, for a model of 256");
  EXPECT_EQ(stepped.engine().stats().queued, 0);
}

TEST_F(EngineTest, RefusesMoreThanTheQueueHolds) {
  EngineOptions options = small_options();
  options.max_running_requests = 2;
  options.max_queued_requests = 3;
  Stepped stepped(model(), options);
  for (int i = 0; i < 5; ++i) stepped.submit(greedy(ids(10, i), 5));
  EXPECT_THROW(stepped.submit(greedy(ids(10, 9), 5)), QueueFull);
  stepped.engine().step();
  EXPECT_THROW(stepped.submit(greedy(ids(10, 9), 5)), QueueFull);
  stepped.drain();
  EXPECT_EQ(stepped.finish(greedy(ids(10, 9), 5)).tokens.size(), 5u);
}

TEST_F(EngineTest, FillsInItsDefaults) {
  Exec exec(exec_options(1));
  Engine engine(model(), {}, exec);
  EXPECT_EQ(engine.options().context, kContext);
  EXPECT_EQ(engine.options().max_total_tokens, 4 * kContext);
}

TEST_F(EngineTest, StopCancelsEverybodyAndNobodyIsTakenAfterwards) {
  for (const int32_t depth : {0, 1, 2}) {
    SCOPED_TRACE(cat(depth, " steps in flight"));
    EngineOptions options = small_options();
    options.max_running_requests = 1;
    options.steps_in_flight = depth;
    Stepped stepped(model(), options);
    const RequestId runs = stepped.submit(greedy(ids(40, 1), 100));
    const RequestId waits = stepped.submit(greedy(ids(40, 2), 100));
    for (int32_t step = 0; step < depth + 2; ++step) stepped.engine().step();
    const RequestId comes = stepped.submit(greedy(ids(40, 3), 100));
    EXPECT_TRUE(stepped.engine().accepts());
    stepped.engine().stop();
    stepped.engine().stop();
    EXPECT_FALSE(stepped.engine().accepts());
    for (const RequestId id : {runs, waits, comes}) EXPECT_EQ(stepped.heard(id).finish, Finish::cancelled);
    EXPECT_EQ(stepped.heard(runs).tokens.size(), 2u) << "what is in flight is heard by nobody";
    EXPECT_EQ(stepped.engine().stats().cancelled, 3);
    expect_all_pages_are_back(stepped.engine().stats());
    expect_refused([&] { stepped.submit(greedy({1}, 1)); }, "has stopped");
    expect_refused([&] { stepped.engine().start(); }, "has stopped");
    EXPECT_FALSE(stepped.engine().step());
  }
}

TEST_F(EngineTest, FlushEmptiesTheCache) {
  Stepped stepped(model(), small_options());
  stepped.finish(greedy(ids(100, 1), 1));
  EXPECT_GT(stepped.engine().stats().cached_pages, 0);
  stepped.engine().flush_cache();
  EXPECT_TRUE(stepped.engine().step());
  EXPECT_EQ(stepped.engine().stats().cached_pages, 0);
  EXPECT_EQ(stepped.finish(greedy(ids(100, 1), 1)).cached, 0);
}

// One token's embedding is not a number: its requests fail, and what comes after them is as good as ever.
TEST_F(EngineTest, AFailedStepEndsItsRequestsAndTheEngineGoesOn) {
  TinyModel broken = tiny();
  std::mt19937_64 random(5);
  std::vector<std::byte> table =
      model::testing::random_weights(BlockType::f32, int64_t{broken.vocabulary} * broken.width, 1, random);
  const float nan = std::nanf("");
  for (int32_t i = 0; i < broken.width; ++i)
    std::memcpy(table.data() + (7 * broken.width + i) * sizeof(float), &nan, sizeof(float));
  broken.change = [&](model::testing::GgufWriter& file) {
    file.tensor("token_embd.weight", BlockType::f32, {broken.vocabulary, broken.width}, table);
  };
  const TinyFile file(broken);
  Exec exec(exec_options(2));
  const model::Model half_broken(file.path(), exec);

  Tokens good = random_ids(40, broken.vocabulary, 1);
  std::replace(good.begin(), good.end(), 7, 8);
  Tokens bad = good;
  bad[20] = 7;
  EngineOptions options = small_options();
  options.max_total_tokens = 64;  // so that pages are used again
  Stepped before(half_broken, options), stepped(half_broken, options);
  Request request = greedy(good, 10);
  request.sampling.logit_bias = {{7, -100.0f}};
  const Heard expected = before.finish(request);
  EXPECT_EQ(expected.tokens.size(), 10u);
  for (int round = 0; round < 3; ++round) {
    const Heard failed = stepped.finish(greedy(bad, 10));
    EXPECT_EQ(failed.finish, Finish::failed);
    EXPECT_FALSE(failed.error.empty());
    EXPECT_EQ(failed.ends, 1);
    EXPECT_TRUE(stepped.finish(request).same_output(expected));
  }
}

// No thread can be made while it lives: their stacks would be larger than any memory.
class NoNewThreads {
 public:
  NoNewThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_getattr_default_np(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 50);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~NoNewThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

// A step whose first mask finds no thread is not computed at all.
TEST_F(EngineTest, AStepThatCannotBeComputedEndsItsRequestsAndThoseBehindIt) {
  const int32_t vocabulary = model().config().vocabulary;
  const Request plain = greedy(ids(40, 1), 100);
  const auto masked = [&] {
    Request request = greedy(ids(1, 2), 20);  // which draws in its first step
    request.mask = std::make_shared<HashMask>(5, vocabulary);
    return request;
  };
  Stepped alone(model(), small_options());
  const Heard expected = alone.finish(plain), expected_masked = alone.finish(masked());
  for (const int32_t depth : {0, 1, 2}) {
    SCOPED_TRACE(cat(depth, " steps in flight"));
    EngineOptions options = small_options();
    options.steps_in_flight = depth;
    Stepped stepped(model(), options);
    const RequestId runs = stepped.submit(plain);
    for (int32_t step = 0; step < depth + 5; ++step) stepped.engine().step();
    const size_t before = stepped.heard(runs).tokens.size();
    EXPECT_EQ(before, 5u);
    const RequestId comes = stepped.submit(masked());
    {
      const NoNewThreads none;
      for (int32_t step = 0; step < depth; ++step) stepped.engine().step();
      EXPECT_EQ(stepped.heard(runs).finish, Finish::none) << "that step is still in flight";
      stepped.engine().step();
    }
    for (const RequestId id : {runs, comes}) {
      EXPECT_EQ(stepped.heard(id).finish, Finish::failed);
      EXPECT_EQ(stepped.heard(id).error, "Resource temporarily unavailable");
      EXPECT_EQ(stepped.heard(id).ends, 1);
    }
    EXPECT_EQ(stepped.heard(runs).tokens.size(), before + depth) << "those of the steps before it";
    EXPECT_TRUE(stepped.heard(runs).begins(expected));
    stepped.drain();  // steps in flight behind it have no masks either, and fail whom they find
    EXPECT_TRUE(stepped.finish(plain).same_output(expected));
    EXPECT_TRUE(stepped.finish(masked()).same_output(expected_masked));
    expect_all_pages_are_back(stepped.engine().stats());
  }
}

// --- a device that fails

// The CPU, of which one call fails.
class FailingDevice final : public StepDevice {
 public:
  enum class Call : uint8_t { launch, draw, finish };
  template <class Error>
  static StepDeviceMaker failing(Call call, int number, const Error& error) {
    return [=](const StepDeviceParts& parts) {
      auto device = std::make_unique<FailingDevice>();
      device->works_ = make_step_device(parts);
      device->before_ = [=, calls = 0](Call made) mutable {
        if (made == call && ++calls == number) throw error;
      };
      return device;
    };
  }
  void launch(Step& step) override {
    before_(Call::launch);
    works_->launch(step);
  }
  void draw(Step& step) override {
    before_(Call::draw);
    works_->draw(step);
  }
  void finish(Step& step) override {
    before_(Call::finish);
    works_->finish(step);
  }

 private:
  std::unique_ptr<StepDevice> works_;
  std::function<void(Call)> before_;
};

// Callers of a running loop: who was told what, and that all were.
class Callers {
 public:
  Listener listener() {
    return [this](const Output& output) {
      const std::lock_guard lock(mutex_);
      heard_[output.id].hear(output);
      ended_ += output.finish != Finish::none;
      changed_.notify_all();
    };
  }
  std::map<RequestId, Heard> wait_for_ends(int count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ended_ == count; }));
    return heard_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Heard> heard_;
  int ended_ = 0;
};

TEST_F(EngineTest, ADeviceThatFailsEndsEverybodyWhoIsToldWhatWasInFlight) {
  for (const auto call : {FailingDevice::Call::launch, FailingDevice::Call::draw, FailingDevice::Call::finish})
    for (const int32_t depth : {0, 1, 2}) {
      SCOPED_TRACE(cat(depth, " steps in flight"));
      EngineOptions options = small_options();
      options.steps_in_flight = depth;
      options.max_running_requests = 2;
      std::promise<void> broken;
      options.on_broken = [&] { broken.set_value(); };
      Callers callers;
      Exec exec({.threads = 2});
      Engine engine(model(), options, exec,
                    FailingDevice::failing(call, 7, cuda::DeviceError("the device failed: an illegal address")));
      for (int i = 0; i < 3; ++i) engine.submit(greedy(ids(20, 1 + i), 100), callers.listener());  // one waits
      engine.start();
      broken.get_future().wait();
      for (const auto& [id, heard] : callers.wait_for_ends(3)) {
        EXPECT_EQ(heard.finish, Finish::failed);
        EXPECT_EQ(heard.ends, 1);
        EXPECT_EQ(heard.error.find("the device failed: an illegal address; in flight: step "), 0u) << heard.error;
        EXPECT_NE(heard.error.find(", 2 rows of 2 requests, 2 wanted"), std::string::npos) << heard.error;
      }
      EXPECT_FALSE(engine.accepts());
      EXPECT_TRUE(engine.has_broken_down());
      EXPECT_THROW(engine.submit(greedy(ids(20, 1), 1), [](const Output&) {}), EngineStopped);
    }
}

// Its rows would stand on what was not computed, and pages that they fill would look whole.
TEST_F(EngineTest, NothingIsComputedBehindAStepThatFailed) {
  class CountingDevice final : public StepDevice {
   public:
    CountingDevice(const StepDeviceParts& parts, int fails, std::vector<int64_t>& drawn)
        : works_(make_step_device(parts)), fails_(fails), drawn_(drawn) {}
    void launch(Step& step) override {
      if (step.batch.step == fails_) throw std::runtime_error("no room for this one");
      works_->launch(step);
    }
    void draw(Step& step) override {
      drawn_.push_back(step.batch.step);
      works_->draw(step);
    }
    void finish(Step& step) override { works_->finish(step); }

   private:
    std::unique_ptr<StepDevice> works_;
    int64_t fails_;
    std::vector<int64_t>& drawn_;
  };
  for (const int32_t depth : {0, 1, 2}) {
    SCOPED_TRACE(cat(depth, " steps in flight"));
    EngineOptions options = small_options();
    options.steps_in_flight = depth;
    options.prefill_chunk = options.mixed_chunk = 16;
    Callers callers;
    std::vector<int64_t> drawn;
    Exec exec({.threads = 1});
    Engine engine(model(), options, exec,
                  [&](const StepDeviceParts& parts) { return std::make_unique<CountingDevice>(parts, 2, drawn); });
    engine.submit(greedy(ids(80, 1), 5), callers.listener());
    while (engine.step()) {
    }
    EXPECT_EQ(callers.wait_for_ends(1).begin()->second.error, "no room for this one");
    EXPECT_EQ(drawn, (std::vector<int64_t>{1}));
    engine.submit(greedy(ids(80, 1), 5), callers.listener());
    while (engine.step()) {
    }
    EXPECT_EQ(callers.wait_for_ends(2).rbegin()->second.finish, Finish::length);
  }
}

// Who steps it hears of the failure, and the engine ends without asking the device again.
TEST_F(EngineTest, AnEngineWhoseDeviceFailedInAStepOfOnesOwnEnds) {
  class GoneDevice final : public StepDevice {
   public:
    void launch(Step&) override { throw cuda::DeviceError("gone"); }
    void draw(Step&) override { ADD_FAILURE() << "it was asked again"; }
    void finish(Step&) override { ADD_FAILURE() << "it was asked again"; }
  };
  Callers callers;
  {
    Exec exec({.threads = 1});
    Engine engine(model(), small_options(), exec,
                  [](const StepDeviceParts&) { return std::make_unique<GoneDevice>(); });
    engine.submit(greedy(ids(20, 1), 5), callers.listener());
    EXPECT_THROW(engine.step(), cuda::DeviceError);
  }
  EXPECT_EQ(callers.wait_for_ends(1).begin()->second.finish, Finish::cancelled);
}

// How many requests run together follows from the device where nobody says it.
TEST_F(EngineTest, RunsAsManyRequestsAsItsDeviceIsFor) {
  EngineOptions options = small_options();
  options.max_running_requests = 0;
  Exec exec({.threads = 1});
  EXPECT_EQ(Engine(model(), options, exec).options().max_running_requests, 64);
  model::EagleSpec head{};
  head.draft_vocabulary = 100;
  head.layer = model().config().layers.front();
  options.head = nullptr;
  options.speculative_eagle_topk = 2;
  const auto branches = [&](Device device) { return memory_demand(options, model().config(), &head, device).branches; };
  EXPECT_EQ(branches(Device::cuda), 4 * branches(Device::cpu));
  EXPECT_GT(branches(Device::cpu), 0);
}

// Looks at every step on its way to the device.
class WatchedDevice final : public StepDevice {
 public:
  static StepDeviceMaker watched_by(const std::function<void(const Batch&)>& look) {
    return [=](const StepDeviceParts& parts) { return std::make_unique<WatchedDevice>(make_step_device(parts), look); };
  }
  WatchedDevice(std::unique_ptr<StepDevice> works, std::function<void(const Batch&)> look)
      : works_(std::move(works)), look_(std::move(look)) {}
  void launch(Step& step) override {
    look_(step.batch);
    works_->launch(step);
  }
  void draw(Step& step) override { works_->draw(step); }
  void finish(Step& step) override { works_->finish(step); }

 private:
  std::unique_ptr<StepDevice> works_;
  std::function<void(const Batch&)> look_;
};

// Writes down what is asked of the CPU, and when.
class WrittenDevice final : public StepDevice {
 public:
  WrittenDevice(std::unique_ptr<StepDevice> works, std::string& log) : works_(std::move(works)), log_(log) {}
  void launch(Step& step) override { works_->launch(written("launch ", step)); }
  void draw(Step& step) override { works_->draw(written("draw ", step)); }
  void finish(Step& step) override { works_->finish(written("finish ", step)); }

 private:
  Step& written(const char* call, Step& step) {
    log_ += cat(call, step.batch.step, ", ");
    return step;
  }

  std::unique_ptr<StepDevice> works_;
  std::string& log_;
};

// Its rows are on the device before the step before it is read, however many steps may be in flight.
TEST_F(EngineTest, AStepThatDrawsByHistoryIsLaunchedBeforeTheStepBeforeItIsRead) {
  const std::pair<int32_t, const char*> expected[] = {
      {0, "launch 5, draw 5, finish 5, launch 6, draw 6, finish 6, "},
      {1, "launch 5, finish 4, draw 5, launch 6, finish 5, draw 6, "},
      {2, "launch 5, finish 4, draw 5, launch 6, finish 5, draw 6, "},
  };
  for (const auto& [depth, calls] : expected) {
    EngineOptions options = small_options();
    options.steps_in_flight = depth;
    std::string log;
    Exec exec({.threads = 2});
    Engine engine(model(), options, exec, [&](const StepDeviceParts& parts) {
      return std::make_unique<WrittenDevice>(make_step_device(parts), log);
    });
    Request penalised = greedy(ids(20, 1), 20);
    penalised.sampling.presence_penalty = 1;
    engine.submit(penalised, [](const Output&) {});
    engine.submit(greedy(ids(20, 2), 20), [](const Output&) {});
    for (int step = 0; step < 4; ++step) engine.step();
    log.clear();
    for (int step = 0; step < 2; ++step) engine.step();
    EXPECT_EQ(log, calls) << depth << " steps in flight";
  }
}

// A client may name every token of the vocabulary: a device that wants them sorted must not do so in each step.
TEST_F(EngineTest, BiasesAreInTheOrderOfTheirTokensBeforeTheFirstStep) {
  using Biases = std::vector<std::pair<int32_t, float>>;
  int steps = 0;
  Exec exec({.threads = 2});
  Engine engine(model(), small_options(), exec, WatchedDevice::watched_by([&](const Batch& batch) {
                  for (const Share& share : batch.shares)
                    EXPECT_EQ(share.request->sampling.logit_bias, (Biases{{3, 2}, {3, 5}, {9, 1}, {9, -1}}));
                  ++steps;
                }));
  Request request = greedy(ids(20, 1), 3);
  request.sampling.logit_bias = {{9, 1}, {3, 2}, {9, -1}, {3, 5}};
  engine.submit(request, [](const Output&) {});
  while (engine.step()) {
  }
  EXPECT_GE(steps, 3);
}

// All is as it was before.
TEST_F(EngineTest, AStepWithoutMemoryFailsAlone) {
  Exec exec({.threads = 2});
  Callers callers;
  Engine engine(model(), small_options(), exec,
                FailingDevice::failing(FailingDevice::Call::launch, 3, cuda::OutOfMemory("cannot pin 8 bytes")));
  const RequestId failed = engine.submit(greedy(ids(20, 1), 100), callers.listener());
  while (engine.step()) {
  }
  const RequestId next = engine.submit(greedy(ids(20, 1), 5), callers.listener());
  while (engine.step()) {
  }
  auto heard = callers.wait_for_ends(2);
  EXPECT_EQ(heard[failed].error, "cannot pin 8 bytes");
  EXPECT_EQ(heard[next].finish, Finish::length);
  expect_all_pages_are_back(engine.stats());
}

TEST_F(EngineTest, ADeviceWithoutMemorySaysWhatToLower) {
  Exec exec({.threads = 1});
  const auto make = [&] {
    Engine engine(model(), small_options(), exec, [](const StepDeviceParts&) -> std::unique_ptr<StepDevice> {
      throw cuda::OutOfMemory("cannot allocate 8 bytes on the device: out of memory");
    });
  };
  try {
    make();
    FAIL() << "it was made";
  } catch (const cuda::OutOfMemory& error) {
    EXPECT_EQ(error.what(),
              std::string("cannot allocate 8 bytes on the device: out of memory: lower --mem-fraction-static, "
                          "--max-total-tokens, --max-running-requests or --chunked-prefill-size"));
  }
}

// --- what a request may draw

TEST_F(EngineTest, DoesNotStopBeforeTheFewestTokens) {
  Stepped stepped(model(), small_options());
  const Heard all = stepped.finish(greedy(ids(40, 1), 20));
  Request request = greedy(ids(40, 1), 20);
  request.stop_ids = {all.tokens[0], all.tokens[3]};
  EXPECT_EQ(stepped.finish(request).tokens.size(), 1u);
  request.min_new_tokens = 10;
  const Heard late = stepped.finish(request);
  EXPECT_GE(late.tokens.size(), 10u);
  for (const int32_t stop : request.stop_ids)
    EXPECT_EQ(std::count(late.tokens.begin(), late.tokens.begin() + 10, stop), 0);
  EXPECT_TRUE(late.finish == Finish::stop || late.tokens.size() == 20);
}

TEST_F(EngineTest, DrawsOnlyWhatTheMaskAllows) {
  const int32_t vocabulary = model().config().vocabulary;
  for (const float temperature : {0.0f, 1.0f}) {
    Stepped stepped(model(), small_options());
    Request request = greedy(ids(40, 1), 60);
    request.sampling.temperature = temperature;
    const Heard free = stepped.finish(request);
    request.mask = std::make_shared<HashMask>(5, vocabulary);
    const Heard masked = stepped.finish(request);  // the mask itself looks at what it is told
    EXPECT_EQ(masked.tokens.size(), 60u);
    EXPECT_NE(masked.tokens, free.tokens);
  }
}

TEST_F(EngineTest, AMaskThatThrowsEndsItsOwnRequest) {
  const int32_t vocabulary = model().config().vocabulary;
  Stepped stepped(model(), small_options());
  const Heard alone = stepped.finish(greedy(ids(40, 2), 30));
  Request request = greedy(ids(40, 1), 30);
  request.mask = std::make_shared<HashMask>(5, vocabulary, 7);
  const RequestId thrown = stepped.submit(request), other = stepped.submit(greedy(ids(40, 2), 30));
  stepped.drain();
  EXPECT_EQ(stepped.heard(thrown).finish, Finish::failed);
  EXPECT_EQ(stepped.heard(thrown).error, "the mask was asked 8 times");
  EXPECT_EQ(stepped.heard(thrown).tokens.size(), 7u);
  EXPECT_TRUE(stepped.heard(other).same_output(alone));

  class NotEvenAnException final : public TokenMask {
    const uint32_t* next() override { return nullptr; }
    void accept(int32_t) override { throw 7; }
  };
  request.mask = std::make_shared<NotEvenAnException>();
  EXPECT_EQ(stepped.finish(request).finish, Finish::failed);
}

// Models have logits for more ids than their tokenizers have tokens.
TEST_F(EngineTest, IdsPastTheVocabularyAreNeitherDrawnNorTaken) {
  constexpr int32_t kTokens = 150;
  EngineOptions options = small_options();
  Stepped whole(model(), options);
  options.vocabulary = kTokens;
  Stepped stepped(model(), options);
  for (const float temperature : {0.0f, 1.0f, 5.0f}) {
    Request request = greedy(random_ids(40, kTokens, 1), 100);
    request.sampling.temperature = temperature;
    request.top_logprobs = 10;
    request.prompt_logprobs_from = 0;
    const auto past = [](const Heard& heard) {
      return std::count_if(heard.all_logprobs.begin(), heard.all_logprobs.end(),
                           [](const auto& one) { return one.first >= kTokens; }) +
             std::count_if(heard.prompt_bits.begin(), heard.prompt_bits.end(),
                           [](const auto& one) { return one.first >= kTokens; });
    };
    EXPECT_GT(past(whole.finish(request)), 100) << "else there is nothing to see here";
    const Heard heard = stepped.finish(request);
    EXPECT_EQ(heard.tokens.size(), 100u);
    EXPECT_EQ(past(heard), 0);
    request.mask = std::make_shared<HashMask>(5, kTokens);
    EXPECT_EQ(past(stepped.finish(request)), 0);
  }
  const auto submitting = [&](const Request& request) { return [&, request] { stepped.submit(request); }; };
  expect_refused(submitting(greedy({1, kTokens}, 1)), "token 150 of the prompt is outside the vocabulary of 150");
  Request request = greedy({1}, 1);
  request.logprob_ids = {kTokens};
  expect_refused(submitting(request), "logprobs of token 150");
  request = greedy({1}, 1);
  request.sampling.logit_bias = {{kTokens, 1.0f}};
  expect_refused(submitting(request), "150");
}

// --- masks beside the forward pass

// A mask that is held up until it is let go, in the middle of its text.
class HeldMask final : public TokenMask {
 public:
  HeldMask(int32_t vocabulary, int held_at) : inner_(5, vocabulary), held_at_(held_at) {}

  const uint32_t* next() override {
    if (asked_++ == held_at_) let_go_.get_future().wait();
    return inner_.next();
  }
  void accept(int32_t token) override { inner_.accept(token); }
  void let_go() { let_go_.set_value(); }

 private:
  HashMask inner_;
  const int held_at_;
  int asked_ = 0;
  std::promise<void> let_go_;
};

TEST_F(EngineTest, AMaskThatTakesLongHoldsUpItsOwnRequestOnly) {
  const int32_t vocabulary = model().config().vocabulary;
  Request request = greedy(ids(40, 1), 30);
  request.mask = std::make_shared<HashMask>(5, vocabulary);
  Stepped alone(model(), small_options());
  const Heard expected = alone.finish(request), other = alone.finish(greedy(ids(40, 2), 150));
  for (const auto& [held_at, depth] : {std::pair{0, 0}, {1, 0}, {12, 0}, {0, 2}, {12, 2}}) {
    SCOPED_TRACE(cat("held at token ", held_at, ", ", depth, " steps in flight"));
    EngineOptions options = small_options();
    options.steps_in_flight = depth;
    Stepped stepped(model(), options);
    const auto held = std::make_shared<HeldMask>(vocabulary, held_at);
    request.mask = held;
    const RequestId slow = stepped.submit(request);
    while (std::ssize(stepped.heard(slow).tokens) < held_at) stepped.engine().step();
    const int64_t steps = stepped.engine().stats().steps;
    const RequestId free = stepped.submit(greedy(ids(40, 2), 150));
    while (stepped.heard(free).finish == Finish::none) stepped.engine().step();
    EXPECT_EQ(std::ssize(stepped.heard(slow).tokens), held_at);
    EXPECT_LT(stepped.engine().stats().steps - steps, 160);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(stepped.engine().step()) << "it waits for the mask";
    held->let_go();
    stepped.drain();
    EXPECT_TRUE(stepped.heard(slow).same_output(expected));
    EXPECT_TRUE(stepped.heard(free).same_output(other));
  }
}

// Who draws by its text is in every step, however late the device answers, and holds up nobody beside it. A mask that
// is late on a busy machine misses some.
TEST_F(EngineTest, EverybodyHasATokenInEachStepUnderAMaskOrNot) {
  constexpr int kEnough = 5,
                kAttempts = 50;  // on a machine with other work its mask may be late in every step for a while
  for (const int32_t depth : {0, 1, 2}) {
    SCOPED_TRACE(cat(depth, " steps in flight"));
    int most_in_a_row = 0;
    for (int attempt = 0; attempt < kAttempts && most_in_a_row < kEnough; ++attempt) {
      EngineOptions options = small_options();
      options.steps_in_flight = depth;
      Stepped stepped(model(), options);
      Request by_mask = greedy(ids(20, 1), 200), by_count = greedy(ids(20, 2), 200);
      by_mask.mask = std::make_shared<HashMask>(5, model().config().vocabulary);
      by_count.sampling.presence_penalty = 1;
      const RequestId masked = stepped.submit(by_mask), counted = stepped.submit(by_count);
      const RequestId free = stepped.submit(greedy(ids(20, 3), 200));
      for (int step = 0; step < 10; ++step) stepped.engine().step();
      const size_t counted_before = stepped.heard(counted).tokens.size();
      const size_t free_before = stepped.heard(free).tokens.size();
      int in_a_row = 0;
      for (size_t step = 1; step <= 150; ++step) {
        const size_t before = stepped.heard(masked).tokens.size();
        stepped.engine().step();
        in_a_row = stepped.heard(masked).tokens.size() > before ? in_a_row + 1 : 0;
        most_in_a_row = std::max(most_in_a_row, in_a_row);
        // A step whose masks nobody waits for leaves one more in flight, where there may be.
        ASSERT_GE(stepped.heard(counted).tokens.size() + depth, counted_before + step);
        ASSERT_GE(stepped.heard(free).tokens.size() + depth, free_before + step);
      }
    }
    EXPECT_GE(most_in_a_row, kEnough);
  }
}

TEST_F(EngineTest, WhoseMaskIsHeldUpCanBeCancelledAndStopped) {
  const int32_t vocabulary = model().config().vocabulary;
  for (const int32_t depth : {0, 2}) {
    SCOPED_TRACE(cat(depth, " steps in flight"));
    EngineOptions options = small_options();
    options.steps_in_flight = depth;
    Stepped stepped(model(), options);
    const auto first = std::make_shared<HeldMask>(vocabulary, 3), second = std::make_shared<HeldMask>(vocabulary, 0);
    Request request = greedy(ids(40, 1), 30);
    request.mask = first;
    const RequestId cancelled = stepped.submit(request);
    request.mask = second;
    const RequestId stopped = stepped.submit(request);
    for (int i = 0; i < 6; ++i) stepped.engine().step();
    stepped.engine().cancel(cancelled);
    stepped.engine().step();
    EXPECT_EQ(stepped.heard(cancelled).finish, Finish::cancelled);
    stepped.engine().stop();
    EXPECT_EQ(stepped.heard(stopped).finish, Finish::cancelled);
    expect_all_pages_are_back(stepped.engine().stats());
    first->let_go();
    second->let_go();
  }
}

TEST_F(EngineTest, WaitingForAMaskIsNotScheduling) {
  constexpr int kWaits = 10;  // of 5 ms, when nobody else runs
  Stepped stepped(model(), small_options());
  const auto held = std::make_shared<HeldMask>(model().config().vocabulary, 0);
  Request request = greedy(ids(40, 1), 2);
  request.mask = held;
  stepped.submit(request);
  for (int i = 0; i < kWaits + 1; ++i) EXPECT_TRUE(stepped.engine().step());
  const EngineStats stats = stepped.engine().stats();
  EXPECT_LE(stats.steps, 2);
  EXPECT_LT(stats.schedule_us * static_cast<double>(stats.steps), kWaits * 5000 / 2.0);
  held->let_go();
  stepped.drain();
}

TEST_F(EngineTest, AConstraintThatCannotBeFollowedIsRefused) {
  class Refused final : public TokenMask {
    const uint32_t* next() override { return nullptr; }
    void accept(int32_t) override { throw ConstraintRefused("it takes too long"); }
  };
  Stepped stepped(model(), small_options());
  Request request = greedy(ids(40, 1), 30);
  request.mask = std::make_shared<Refused>();
  const Heard heard = stepped.finish(request);
  EXPECT_EQ(heard.finish, Finish::refused);
  EXPECT_EQ(heard.error, "it takes too long");
}

// --- what a request learns of its prompt

// Each prefix of the prompt is continued by one token: the logits that its token was drawn from are those that tell of
// the prompt's next token.
TEST_F(EngineTest, PromptLogprobsAreThoseOfTokenByTokenGeneration) {
  const int32_t vocabulary = model().config().vocabulary;
  const Tokens prompt = ids(30, 1);
  Stepped stepped(model(), small_options());
  Request request = greedy(prompt, 1);
  request.top_logprobs = 3;
  request.logprob_ids = {5, 300};
  request.prompt_logprobs_from = 0;
  const Heard heard = stepped.finish(request);
  ASSERT_EQ(heard.prompt_logprobs.size(), prompt.size());
  EXPECT_EQ(heard.prompt_logprobs[0].token, prompt[0]);
  EXPECT_EQ(heard.prompt_logprobs[0].logprob, 0);
  for (size_t i = 1; i < prompt.size(); ++i) {
    Request prefix = greedy(Tokens(prompt.begin(), prompt.begin() + i), 1);
    prefix.top_logprobs = vocabulary;
    Heard one = stepped.finish(prefix);
    std::map<int32_t, uint32_t> expected(one.top.begin(), one.top.end());
    const TokenLogprob& scored = heard.prompt_logprobs[i];
    EXPECT_EQ(scored.token, prompt[i]);
    EXPECT_EQ(std::bit_cast<uint32_t>(scored.logprob), expected[prompt[i]]);
    ASSERT_EQ(scored.top.size(), 3u);
    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(scored.top[rank].first, one.top[rank].first);
      EXPECT_EQ(std::bit_cast<uint32_t>(scored.top[rank].second), one.top[rank].second);
    }
    ASSERT_EQ(scored.wanted.size(), 2u);
    for (const auto& [id, logprob] : scored.wanted) EXPECT_EQ(std::bit_cast<uint32_t>(logprob), expected[id]);
  }
  request.prompt_logprobs_from = 20;
  request.max_new_tokens = 0;
  const Heard part = stepped.finish(request);
  EXPECT_EQ(part.events, 1);
  EXPECT_EQ(part.cached, 16);
  ASSERT_EQ(part.prompt_logprobs.size(), 10u);
  EXPECT_EQ(part.prompt_logprobs[0].token, prompt[20]);
  EXPECT_EQ(part.prompt_logprobs[0].logprob, heard.prompt_logprobs[20].logprob);
}

// The rows of a runner that gets the whole prompt in one chunk, pooled without any haste.
std::vector<float> pooled_by_hand(const model::Model& model, const Tokens& prompt, Pooling pooling) {
  Exec exec(exec_options(1));
  const SchedulerLimits limits{.context = kContext,
                               .pages = kContext / 16,
                               .page_size = PageSize(16),
                               .running = 1,
                               .prefill_chunk = kContext,
                               .mixed_chunk = 1,
                               .prefix_cache = false};
  kv::PagePool pool(limits.pages + 1, limits.page_size);
  kv::RequestTable table(pool, 2, kContext);
  Runner runner(model, limits, Dtype::bf16, table, exec);
  const auto length = static_cast<int32_t>(prompt.size());
  const RequestRow own_row = table.open();
  EXPECT_TRUE(table.reserve(own_row, {length}));
  Batch batch;
  batch.add({.id = 1,
             .row = own_row,
             .position = 0,
             .count = length,
             .kept = {0, length},
             .request = std::make_shared<const Request>(Request{.pooling = Pooling::mean})},
            prompt);
  const Rows<const float> rows = runner.run(batch).pooled;
  std::vector<double> sum(rows.dim);
  for (int64_t row = pooling == Pooling::mean ? 0 : rows.rows - 1; row < rows.rows; ++row)
    for (int64_t i = 0; i < rows.dim; ++i) sum[i] += static_cast<double>(rows.row(row)[i]);
  double square = 0;
  for (const double x : sum) square += x * x;
  std::vector<float> unit;
  for (const double x : sum) unit.push_back(static_cast<float>(x * (1 / std::sqrt(square))));
  return unit;
}

TEST_F(EngineTest, PoolsRowsToTheBitHoweverThePromptIsCut) {
  for (const Pooling pooling : {Pooling::mean, Pooling::last}) {
    Request request = greedy(ids(64, 1), 0);
    request.pooling = pooling;
    const std::vector<float> expected = pooled_by_hand(model(), request.prompt, pooling);
    double square = 0;
    for (const float x : expected) square += static_cast<double>(x) * x;
    EXPECT_NEAR(square, 1, 1e-6);
    for (const int32_t chunk : {1, 7, 16, 64, 512}) {
      EngineOptions options = small_options();
      options.prefill_chunk = options.mixed_chunk = chunk;
      Stepped stepped(model(), options);
      for (int round = 0; round < 2; ++round) {
        const Heard heard = stepped.finish(request);
        EXPECT_EQ(heard.embedding, expected) << "chunks of " << chunk << ", round " << round;
        EXPECT_EQ(heard.events, 1);
        EXPECT_EQ(heard.cached, round == 1 && pooling == Pooling::last ? 48 : 0);
        EXPECT_EQ(heard.finish, Finish::length);
      }
    }
  }
}

using Trees = testing::KnowingTreeDrafter::Trees;

// --- the same output whatever else happens

struct Kind {
  const char* name;
  TinyModel model;
};

class SameOutputTest : public ::testing::TestWithParam<Kind> {};

TEST_P(SameOutputTest, AloneInAnyBatchAfterAnyCacheChunkRetractionAndDraft) {
  Exec exec(exec_options(2));
  const TinyFile file(GetParam().model);
  const model::Model model(file.path(), exec);
  const model::testing::TinyHeadFile head_file(model::testing::tiny_head(model));
  const model::EagleHead head(head_file.path(), model, exec);
  const testing::Scheduled over{
      .model = model, .head = head, .exec = exec_options(0), .kv_types = {Dtype::bf16, Dtype::f16, Dtype::f8e4m3}};
  int64_t retractions = 0, cached = 0, drafts = 0, correct = 0;
  for (uint32_t seed = 0; seed < 20 && !HasFailure(); ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    testing::RandomSchedule same(over, seed);
    same.run();
    retractions += same.retractions;
    cached += same.cached;
    drafts += same.speculated.drafts;
    correct += same.speculated.correct;
  }
  EXPECT_GT(retractions, 3);
  EXPECT_GT(cached, 500);
  EXPECT_GT(drafts, 1000);
  EXPECT_GT(correct, 1000);
}

TinyModel with_window(int32_t window) {
  TinyModel model = tiny();
  model.window = window;
  return model;
}

INSTANTIATE_TEST_SUITE_P(, SameOutputTest,
                         ::testing::Values(Kind{"Dense", tiny()}, Kind{"Quantised", tiny(BlockType::q8_0)},
                                           Kind{"Window", with_window(24)}),
                         [](const auto& parameter) { return parameter.param.name; });

// --- drafts

MakeDrafter knowing(const Tokens& answer, double right, const Trees& trees = {.topk = 1}) {
  return [answer, right, trees](const Request& request) {
    Tokens whole = request.prompt;
    whole.insert(whole.end(), answer.begin(), answer.end());
    return knowing_drafter(std::move(whole), right, 1, trees);
  };
}

// Greedy, and seeded with penalties at several temperatures: each draft is compared with what the request's own sampler
// draws at its place.
TEST_F(EngineTest, DraftsThatAreRightAreAcceptedWholeAtEveryTemperature) {
  for (const float temperature : {0.0f, 0.7f, 1.5f}) {
    SCOPED_TRACE(temperature);
    Request request = greedy(ids(40, 1), 65);
    request.sampling = {.temperature = temperature, .top_p = 0.9f, .presence_penalty = 0.5f, .seed = 7};
    EngineOptions options = small_options();
    const Heard alone = Stepped(model(), options).finish(request);
    options.make_drafter = knowing(alone.tokens, 1);
    Stepped stepped(model(), options);
    EXPECT_TRUE(stepped.finish(request).same_output(alone));
    const Speculated speculated = stepped.engine().stats().speculated;
    EXPECT_GT(speculated.drafts, 0);
    EXPECT_EQ(speculated.correct, speculated.drafts);
    EXPECT_EQ(stepped.heard(1).speculated.correct, speculated.correct);
    expect_all_pages_are_back(stepped.engine().stats());
  }
}

// Trees, too: wherever the right draft stands among its siblings, and its keys and values lie among others', the path
// is found, drawn from and goes on. As long as the budget takes a level whole, all its levels come.
TEST_F(EngineTest, TreesAreWalkedToTheirDepthAtEveryTemperatureAndPageSize) {
  for (const float temperature : {0.0f, 0.7f, 1.5f})
    for (const int32_t page_size : {1, 16, 64})
      for (const int32_t least_place : {0, 1}) {
        SCOPED_TRACE(cat("temperature ", temperature, ", pages of ", page_size, ", place ", least_place));
        Request request = greedy(ids(40, 1), 80);
        request.sampling = {.temperature = temperature, .top_p = 0.9f, .presence_penalty = 0.5f, .seed = 7};
        EngineOptions options = small_options();
        options.page_size = page_size;
        const Heard alone = Stepped(model(), options).finish(request);
        options.speculative_eagle_topk = 2;
        options.speculative_num_draft_tokens = 13;
        options.make_drafter = knowing(alone.tokens, 1, {.topk = 2, .least_place = least_place, .strays = false});
        Stepped stepped(model(), options);
        EXPECT_TRUE(stepped.finish(request).same_output(alone));
        const Speculated speculated = stepped.engine().stats().speculated;
        EXPECT_GT(speculated.correct, 10);
        // Of an odd number the budget, or what may still be generated, cut the last level in two.
        EXPECT_GE(speculated.correct, (speculated.drafts - speculated.verifications) / 2);
        expect_all_pages_are_back(stepped.engine().stats());
      }
}

TEST_F(EngineTest, TreesThatAreAlwaysWrongCostRowsAndNothingElse) {
  for (const int32_t page_size : {1, 16, 64}) {
    SCOPED_TRACE(page_size);
    Request request = greedy(ids(40, 1), 60);
    request.sampling = {.temperature = 0.8f, .frequency_penalty = 0.5f, .seed = 3};
    EngineOptions options = small_options();
    options.page_size = page_size;
    const Heard alone = Stepped(model(), options).finish(request);
    options.speculative_eagle_topk = 3;
    options.speculative_num_draft_tokens = 13;
    options.make_drafter = knowing(alone.tokens, 0, {.topk = 3});
    Stepped stepped(model(), options);
    EXPECT_TRUE(stepped.finish(request).same_output(alone));
    const Speculated speculated = stepped.engine().stats().speculated;
    EXPECT_GT(speculated.drafts, 20);
    EXPECT_EQ(speculated.correct, 0);
    expect_all_pages_are_back(stepped.engine().stats());
  }
}

TEST_F(EngineTest, RefusesTreesThatCannotBe) {
  const auto refused = [&](int32_t topk, int32_t steps, int32_t verified, const std::string& part) {
    EngineOptions options = small_options();
    options.speculative_eagle_topk = topk;
    options.speculative_num_steps = steps;
    options.speculative_num_draft_tokens = verified;
    expect_refused([&] { Stepped(model(), options); }, part);
  };
  refused(0, 3, 4, "--speculative-eagle-topk is 0");
  refused(1, -1, 4, "--speculative-num-steps is -1");
  refused(1, 4, 4, "5 tokens, and --speculative-num-draft-tokens lets a step verify 4");
  refused(2, 2, 8,
          "a tree of 2 branches (--speculative-eagle-topk) and 2 steps (--speculative-num-steps) has 6 drafts");
  EngineOptions options = small_options();
  options.speculative_eagle_topk = 2;
  options.speculative_num_steps = 2;
  options.speculative_num_draft_tokens = 7;
  EXPECT_EQ(Stepped(model(), options).engine().options().speculative_num_steps, 2);
  options.speculative_num_steps = 0;
  EXPECT_EQ(Stepped(model(), options).engine().options().speculative_num_steps, kTreeSteps);
  options.speculative_eagle_topk = 1;
  EXPECT_EQ(Stepped(model(), options).engine().options().speculative_num_steps, 6);
}

// A tiny model loops when it is greedy: then its own text says what comes.
TEST_F(EngineTest, OwnTextDraftsForATextThatRepeatsItself) {
  Tokens prompt;
  for (int i = 0; i < 3; ++i)
    for (const int32_t token : ids(16, 3)) prompt.push_back(token);
  const Request request = greedy(prompt, 150);
  EngineOptions options = small_options();
  const Heard alone = Stepped(model(), options).finish(request);
  options.make_drafter = ngram_drafters();
  Stepped stepped(model(), options);
  EXPECT_TRUE(stepped.finish(request).same_output(alone));
  EXPECT_GT(stepped.engine().stats().speculated.accept_length(), 1);
  EXPECT_LT(stepped.engine().stats().steps, 150);  // how many fewer, the measured times of steps decide
}

TEST_F(EngineTest, ARequestMaySwitchDraftsOff) {
  Request request = greedy(ids(40, 1), 30);
  EngineOptions options = small_options();
  const Heard alone = Stepped(model(), options).finish(request);
  options.make_drafter = knowing(alone.tokens, 1);
  Stepped stepped(model(), options);
  request.speculative = false;
  EXPECT_TRUE(stepped.finish(request).same_output(alone));
  EXPECT_EQ(stepped.engine().stats().speculated.verifications, 0);
  EXPECT_EQ(stepped.engine().stats().steps, 30);
}

TEST_F(EngineTest, RefusesFewerThanTwoTokensToVerify) {
  EngineOptions options = small_options();
  options.speculative_num_draft_tokens = 1;
  expect_refused([&] { Stepped(model(), options); }, "--speculative-num-draft-tokens is 1");
}

// --- threads

TEST_F(EngineTest, TakesRequestsFromManyThreadsWhileItRuns) {
  constexpr int kThreads = 4, kRequests = 12;
  Stepped alone(model(), small_options());
  std::vector<Heard> expected;
  for (int i = 0; i < kRequests; ++i) expected.push_back(alone.finish(greedy(ids(5 + 7 * i, i), 5 + i)));

  Exec exec(exec_options(2));
  std::mutex mutex;
  std::map<RequestId, Heard> heard;
  std::atomic<int> ends = 0;
  {
    Engine engine(model(), small_options(), exec);
    engine.start();
    const auto listener = [&](const Output& output) {
      const std::lock_guard lock(mutex);
      heard[output.id].hear(output);
      ends += output.finish != Finish::none;
    };
    std::vector<std::thread> threads;
    std::vector<std::vector<RequestId>> submitted(kThreads);
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < kRequests; ++i) {
          submitted[t].push_back(engine.submit(greedy(ids(5 + 7 * i, i), 5 + i), listener));
          if (i % 4 == t) engine.cancel(submitted[t].back());
          if (i % 5 == t) engine.flush_cache();
          const EngineStats stats = engine.stats();
          EXPECT_LE(stats.free_pages + stats.cached_pages, stats.total_pages);
        }
      });
    for (std::thread& thread : threads) thread.join();
    while (ends < kThreads * kRequests) std::this_thread::yield();
    engine.stop();  // the last listener is told before the counters show it
    EXPECT_EQ(engine.stats().cancelled + engine.stats().finished, kThreads * kRequests);
    for (int t = 0; t < kThreads; ++t)
      for (int i = 0; i < kRequests; ++i) {
        const Heard& one = heard[submitted[t][i]];
        EXPECT_EQ(one.ends, 1);
        EXPECT_TRUE(one.finish == Finish::cancelled ? i % 4 == t && one.begins(expected[i])
                                                    : one.same_output(expected[i]));
      }
  }
}

// The loop is asleep, or busy with a request that runs: a waiting one is told at once.
TEST_F(EngineTest, CancelReachesARunningAndAWaitingRequest) {
  Exec exec(exec_options(1));
  EngineOptions options = small_options();
  options.max_running_requests = 1;
  Engine engine(model(), options, exec);
  std::promise<void> runs_now, both_are_cancelled;
  std::atomic<int> cancelled = 0, ended = 0;
  const auto end = [&](const Output& output) {
    cancelled += output.finish == Finish::cancelled;
    ended += output.finish != Finish::none;
  };
  const RequestId runs = engine.submit(
      greedy(ids(20, 1), -1), [&, released = both_are_cancelled.get_future().share()](const Output& output) {
        if (output.generated == 1 && output.token >= 0) {  // the loop stands here until both are cancelled
          runs_now.set_value();
          released.wait();
        }
        end(output);
      });
  engine.start();
  runs_now.get_future().wait();
  engine.cancel(engine.submit(greedy(ids(20, 2), 10), [&](const Output& output) {
    EXPECT_EQ(output.token, -1);
    EXPECT_GE(output.queued_seconds, 0);
    end(output);
  }));
  engine.cancel(runs);
  both_are_cancelled.set_value();
  while (ended < 2) std::this_thread::yield();
  EXPECT_EQ(cancelled, 2);
}

TEST_F(EngineTest, ASleepingLoopWakesForEveryRequestAndCancellation) {
  Exec exec(exec_options(1));
  Engine engine(model(), small_options(), exec);
  engine.start();
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // long enough to fall asleep
    engine.cancel(1000);                                        // nobody
    std::atomic<Finish> end = Finish::none;
    const RequestId id = engine.submit(greedy(ids(200, i), -1), [&](const Output& output) { end = output.finish; });
    engine.cancel(id);
    while (end == Finish::none) std::this_thread::yield();
    EXPECT_TRUE(end == Finish::cancelled || end == Finish::length) << "the latter if it was faster";
  }
}

TEST_F(EngineTest, CancelledInItsPromptARequestGivesItsPagesBackInOneStep) {
  EngineOptions options = small_options();
  options.prefill_chunk = 20;
  Stepped stepped(model(), options);
  const RequestId id = stepped.submit(greedy(ids(200, 1), 10));
  for (int i = 0; i < 3; ++i) stepped.engine().step();
  EngineStats stats = stepped.engine().stats();
  EXPECT_LT(stats.free_pages + stats.evictable_pages, stats.total_pages);
  stepped.engine().cancel(id);
  stepped.engine().step();
  EXPECT_EQ(stepped.heard(id).finish, Finish::cancelled);
  stats = stepped.engine().stats();
  EXPECT_EQ(stats.free_pages + stats.evictable_pages, stats.total_pages);
  EXPECT_EQ(stats.running, 0);
}

TEST_F(EngineTest, SaysHowLongARequestWaited) {
  EngineOptions options = small_options();
  options.max_running_requests = 1;
  Stepped stepped(model(), options);
  const RequestId first = stepped.submit(greedy(ids(20, 1), 5)), second = stepped.submit(greedy(ids(20, 2), 5));
  stepped.engine().step();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  stepped.drain();
  EXPECT_GT(stepped.heard(second).queued, 0.02);
  EXPECT_LT(stepped.heard(first).queued, stepped.heard(second).queued);
}

TEST_F(EngineTest, StopEndsARunningLoopAndTellsEverybody) {
  Exec exec(exec_options(2));
  std::atomic<int> cancelled = 0, tokens = 0;
  {
    Engine engine(model(), small_options(), exec);
    engine.start();
    expect_refused([&] { engine.start(); }, "has been started");
    for (int i = 0; i < 20; ++i)
      engine.submit(greedy(ids(20, i), -1), [&](const Output& output) {
        if (++tokens > 30) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // nobody ends before the stop
        cancelled += output.finish == Finish::cancelled;
      });
    while (tokens < 30) std::this_thread::yield();
    std::thread other([&] { engine.stop(); });
    engine.stop();
    other.join();
    EXPECT_EQ(cancelled, 20);
  }
}

TEST_F(EngineTest, AListenerMaySubmitTheNextRequest) {
  Exec exec(exec_options(1));
  Engine engine(model(), small_options(), exec);
  int finished = 0;
  std::function<void(const Output&)> again = [&](const Output& output) {
    if (output.finish == Finish::none) return;
    if (++finished < 5) engine.submit(greedy(ids(20, finished), 3), again);
  };
  engine.submit(greedy(ids(20, 0), 3), again);
  while (engine.step()) {
  }
  EXPECT_EQ(finished, 5);
}

TEST(DraftOptions, AreRefusedInTheWordsOfTheOptionsWithoutAModel) {
  const auto checking = [](EngineOptions options) { return [=] { check_draft_options(options); }; };
  check_draft_options({});
  check_draft_options({.speculative_num_draft_tokens = 64, .speculative_eagle_topk = 64, .speculative_num_steps = 63});
  expect_refused(checking({.speculative_num_draft_tokens = 1}), "--speculative-num-draft-tokens is 1");
  expect_refused(checking({.speculative_num_draft_tokens = (1 << 25) + 1}), "not from 2 to 1024");
  expect_refused(checking({.speculative_eagle_topk = 0}), "--speculative-eagle-topk is 0, not from 1 to 1024");
  expect_refused(checking({.speculative_num_steps = 8}), "lets a step verify 8");
  expect_refused(checking({.speculative_eagle_topk = 2, .speculative_num_steps = 1}), "has 2 drafts");
}

}  // namespace
}  // namespace quire::engine
