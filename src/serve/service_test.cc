#include "serve/service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"
#include "serve/watched_exchange.h"

namespace quire::serve {
namespace {

using namespace std::chrono_literals;
using testing::kContext;
using testing::Tasks;
using testing::TestingExchange;
using testing::TinyService;

// All that one job reported, and the condition that its end comes once and last.
class ProgressRecorder {
 public:
  OnProgress listener() {
    return [this](Progress progress) { take(std::move(progress)); };
  }

  End wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 60s, [&] { return ends_ > 0; })) ADD_FAILURE() << "no end came";
    return all_.end.value_or(End{EndReason::failed, {}, "no end came"});
  }
  bool wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, [&] { return all_.tokens.size() >= count || ends_ > 0; });
  }
  Progress all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }
  int ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }

 private:
  void take(Progress progress) {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(ends_, 0) << "progress after the end";
    all_.text += progress.text;
    for (auto& token : progress.tokens) all_.tokens.push_back(std::move(token));
    all_.generated = progress.generated;
    all_.prompt_tokens = progress.prompt_tokens;
    if (progress.end) all_.end = progress.end;
    ends_ += progress.end.has_value();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Progress all_;
  int ends_ = 0;
};

JobSpec job_of(const std::string& prompt, int32_t tokens, const std::string& rid = "job") {
  JobSpec job{.rid = rid};
  job.request.prompt.assign(prompt.begin(), prompt.end());
  job.request.max_new_tokens = tokens;
  job.request.sampling.seed = 7;
  return job;
}

// Deliveries run on the engine's thread here, so this slows it down: what is about to be cancelled does not end before.
OnProgress slowly(ProgressRecorder& recorder) {
  return [listener = recorder.listener()](Progress progress) {
    std::this_thread::sleep_for(3ms);
    listener(std::move(progress));
  };
}

int status_of(Service& service, JobSpec job) {
  try {
    service.run(std::move(job), std::make_shared<TestingExchange>(), [](const Progress&) {});
  } catch (const ApiError& error) {
    return error.status;
  }
  return 200;
}

TEST(Service, RunsAJobToItsEnd) {
  TinyService tiny;
  ProgressRecorder recorder;
  tiny.service().run(job_of("hello", 5), std::make_shared<TestingExchange>(), recorder.listener());
  EXPECT_EQ(recorder.wait().reason, EndReason::length);
  EXPECT_EQ(recorder.all().tokens.size(), 5u);
  EXPECT_EQ(recorder.all().generated, 5);
  EXPECT_EQ(recorder.all().prompt_tokens, 5);
  EXPECT_TRUE(tiny.wait_until_idle());
}

TEST(Service, WhatComesWhileADeliveryWaitsIsDeliveredWithIt) {
  TinyService tiny({.loop = false});
  const auto exchange = std::make_shared<TestingExchange>(http::Request(), Tasks::on_demand);
  std::vector<size_t> sizes;
  tiny.service().run(job_of("hello", 4), exchange, [&](const Progress& progress) {
    sizes.push_back(progress.tokens.size());
    EXPECT_EQ(progress.end.has_value(), sizes.size() == 2);
  });
  tiny.engine().step();
  tiny.engine().step();
  EXPECT_TRUE(sizes.empty());
  exchange->run_tasks();
  while (tiny.engine().step()) {
  }
  EXPECT_EQ(tiny.service().jobs(), 1) << "it ends when its listener has heard";
  exchange->run_tasks();
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 2}));
  EXPECT_EQ(tiny.service().jobs(), 0);
}

TEST(Service, AClientThatLeavesCancels) {
  TinyService tiny;
  ProgressRecorder recorder;
  const auto exchange = std::make_shared<TestingExchange>();
  tiny.service().run(job_of("hello", -1), exchange, slowly(recorder));
  ASSERT_TRUE(recorder.wait_for_tokens(2));
  exchange->leave();
  EXPECT_EQ(recorder.wait().reason, EndReason::cancelled);
  EXPECT_TRUE(tiny.wait_until_idle());
}

TEST(Service, AClientThatHadLeftAlreadyCancels) {
  TinyService tiny;
  ProgressRecorder recorder;
  const auto exchange = std::make_shared<TestingExchange>();
  exchange->leave();
  tiny.service().run(job_of("hello", -1), exchange, slowly(recorder));
  EXPECT_EQ(recorder.wait().reason, EndReason::cancelled);
  EXPECT_TRUE(tiny.wait_until_idle());
}

TEST(Service, AStopTextEndsTheJobAndTheEnginesRequest) {
  TinyService tiny;
  ProgressRecorder whole, stopped;
  tiny.service().run(job_of("hello", 60), std::make_shared<TestingExchange>(), whole.listener());
  whole.wait();
  const std::string text = whole.all().text, stop = text.substr(text.size() / 2, 3);
  JobSpec job = job_of("hello", -1);
  job.text.stops = {stop};
  tiny.service().run(std::move(job), std::make_shared<TestingExchange>(), stopped.listener());
  const End end = stopped.wait();
  EXPECT_EQ(end.reason, EndReason::stop);
  EXPECT_EQ(std::get<std::string>(end.matched), stop);
  EXPECT_EQ(stopped.all().text, text.substr(0, text.find(stop)));
  EXPECT_TRUE(tiny.wait_until_idle());
}

TEST(Service, AHandleCancels) {
  TinyService tiny;
  ProgressRecorder recorder;
  const auto job = tiny.service().run(job_of("hello", -1), std::make_shared<TestingExchange>(), slowly(recorder));
  job->cancel();
  EXPECT_EQ(recorder.wait().reason, EndReason::cancelled);
  job->cancel();
  EXPECT_EQ(recorder.ends(), 1);
}

TEST(Service, AbortsByTheBeginningOfANameAndAll) {
  TinyService tiny;
  ProgressRecorder recorders[4];
  const char* names[] = {"call", "call_1", "other", "third"};
  for (int i = 0; i < 4; ++i)
    tiny.service().run(job_of("hello", -1, names[i]), std::make_shared<TestingExchange>(), slowly(recorders[i]));
  EXPECT_EQ(tiny.service().abort("no such name"), 0);
  EXPECT_EQ(tiny.service().abort("call"), 2);
  EXPECT_EQ(recorders[0].wait().reason, EndReason::cancelled);
  EXPECT_EQ(recorders[1].wait().reason, EndReason::cancelled);
  while (tiny.service().jobs() > 2) std::this_thread::yield();  // they are listed until they have been told
  EXPECT_EQ(recorders[2].ends() + recorders[3].ends(), 0);
  EXPECT_EQ(tiny.service().abort(""), 2);
  recorders[2].wait();
  recorders[3].wait();
  EXPECT_TRUE(tiny.wait_until_idle());
}

class BrokenMask final : public engine::TokenMask {
  const uint32_t* next() override { throw CheckError("this mask is broken"); }
  void accept(int32_t) override {}
};

TEST(Service, WhyAJobFailedIsReported) {
  TinyService tiny;
  ProgressRecorder recorder;
  std::string failure;
  JobSpec job = job_of("a", 1);
  job.request.mask = std::make_shared<BrokenMask>();
  {
    const auto call = WatchedExchange::watch(std::make_shared<TestingExchange>(), {},
                                             [&](const Answered& answered) { failure = answered.failure; });
    call->release();
    tiny.service().run(std::move(job), call, recorder.listener());
    EXPECT_EQ(recorder.wait().reason, EndReason::failed);
    EXPECT_TRUE(tiny.wait_until_idle());
  }
  EXPECT_EQ(failure, "this mask is broken");
}

TEST(Service, WhatCanNeverRunIs400) {
  TinyService tiny;
  EXPECT_EQ(status_of(tiny.service(), job_of("", 1)), 400);
  EXPECT_EQ(status_of(tiny.service(), job_of(std::string(kContext + 1, 'a'), 1)), 400);
  JobSpec job = job_of("hello", 1);
  job.request.sampling.logit_bias = {{-1, 1.0f}};
  EXPECT_EQ(status_of(tiny.service(), std::move(job)), 400);
  EXPECT_EQ(tiny.service().jobs(), 0);
}

TEST(Service, AFullQueueIs503) {
  TinyService tiny(
      {.engine = {.max_total_tokens = kContext, .max_running_requests = 1, .max_queued_requests = 1}, .loop = false});
  EXPECT_EQ(status_of(tiny.service(), job_of("hello", 4)), 200);
  EXPECT_EQ(status_of(tiny.service(), job_of("hello", 4)), 200);
  EXPECT_EQ(status_of(tiny.service(), job_of("hello", 4)), 503);
  while (tiny.engine().step()) {
  }
  EXPECT_EQ(status_of(tiny.service(), job_of("hello", 4)), 200);
}

TEST(Service, OneKeyLeavesRoomForTheOthers) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.most_jobs_of_a_key = 2; }, .loop = false});
  const auto status = [&](int32_t key, bool follows = false) {
    JobSpec job = job_of("hello", 4);
    job.key = key;
    job.follows = follows;
    return status_of(tiny.service(), std::move(job));
  };
  EXPECT_EQ(status(0), 200);
  EXPECT_EQ(status(0), 200);
  EXPECT_EQ(status(0), 503);
  EXPECT_EQ(status(0, true), 200) << "of a call that was let in";
  EXPECT_EQ(status(1), 200);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(status(-1), 200) << "the admin's";
  while (tiny.engine().step()) {
  }
  EXPECT_EQ(status(0), 200);
}

TEST(Service, OneThatWaitsTooLongIsToldSo) {
  TinyService tiny({.engine = {.max_total_tokens = kContext, .max_running_requests = 1},
                    .change = [](ServiceOptions& options) { options.queue_time = 50ms; }});
  ProgressRecorder first, second;
  JobSpec job = job_of("hello", 200);
  job.follows = true;  // so that it begins, however busy this machine is
  tiny.service().run(std::move(job), std::make_shared<TestingExchange>(), slowly(first));
  ASSERT_TRUE(first.wait_for_tokens(1));
  tiny.service().run(job_of("other", 1), std::make_shared<TestingExchange>(), second.listener());
  EXPECT_EQ(second.wait().reason, EndReason::timeout);
  EXPECT_EQ(second.all().end->error, "the server is busy: the request waited too long");
  EXPECT_EQ(first.wait().reason, EndReason::length) << "the other goes on";
  EXPECT_EQ(first.all().tokens.size(), 200u);
}

// A call that came long ago, of which one runs: its others do not wait too long because of it.
TEST(Service, WhatFollowsInACallWaitsAsLongAsItHasTo) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.queue_time = 1min; }, .loop = false});
  http::Request long_ago;
  long_ago.arrived -= 1h;
  ProgressRecorder recorder;
  JobSpec job = job_of("hello", 2);
  job.follows = true;
  tiny.service().run(std::move(job), std::make_shared<TestingExchange>(long_ago), recorder.listener());
  std::this_thread::sleep_for(20ms);  // time to be given up, if it were
  while (tiny.engine().step()) {
  }
  EXPECT_EQ(recorder.wait().reason, EndReason::length);
}

TEST(Service, OneThatRunsTooLongEndsWithWhatItHas) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.run_time = 100ms; }});
  ProgressRecorder recorder;
  tiny.service().run(job_of("hello", -1), std::make_shared<TestingExchange>(), slowly(recorder));
  EXPECT_EQ(recorder.wait().reason, EndReason::timeout);
  EXPECT_EQ(recorder.all().end->error, "");
  EXPECT_GT(recorder.all().tokens.size(), 0u);
  EXPECT_TRUE(tiny.wait_until_idle());
}

TEST(Service, WithoutAnEngineNothingIsTheCallersFault) {
  TinyService tiny;
  EXPECT_TRUE(tiny.service().works());
  tiny.engine().stop();
  EXPECT_FALSE(tiny.service().works());
  EXPECT_EQ(status_of(tiny.service(), job_of("hello", 1)), 503);
  EXPECT_THROW(tiny.engine().submit({.prompt = {1}}, [](const engine::Output&) {}), engine::EngineStopped);
}

TEST(Service, DrainingRefusesNewJobsAndLetsOthersEnd) {
  TinyService tiny;
  ProgressRecorder recorder;
  tiny.service().run(job_of("hello", 100), std::make_shared<TestingExchange>(), recorder.listener());
  tiny.service().drain();
  EXPECT_TRUE(tiny.service().draining());
  EXPECT_EQ(status_of(tiny.service(), job_of("hello", 1)), 503);
  EXPECT_EQ(recorder.wait().reason, EndReason::length);
  EXPECT_EQ(recorder.all().tokens.size(), 100u);
}

TEST(Service, RendersTheTemplateWithTheModelsOwnTokens) {
  TinyService tiny({.change = [](ServiceOptions& options) {
    options.chat_template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
  }});
  EXPECT_EQ(tiny.service().render({{"messages", {{{"role", "user"}, {"content", "hi"}}}}}), "<s>hi</s>");
  TinyService own;
  EXPECT_EQ(
      own.service().render({{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"add_generation_prompt", true}}),
      "user: hi\n<|assistant|>");
}

TEST(Service, IdsAreNeverTheSame) {
  TinyService tiny({.loop = false});
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(tiny.service().new_id("chatcmpl-"));
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(ids.begin()->size(), 9u + 30u);
}

// Many clients that stay, leave, cancel, have a stop text or are aborted, at any moment: each is told one end.
TEST(Service, EveryJobEndsOnce) {
  TinyService tiny({.engine = {.max_total_tokens = kContext, .max_running_requests = 4, .max_queued_requests = 8},
                    .change = [](ServiceOptions& options) {
                      options.queue_time = 40ms;
                      options.run_time = 60ms;
                    }});
  std::atomic<bool> stop = false;
  std::thread aborter([&] {
    std::mt19937 random(99);
    while (!stop) {
      tiny.service().abort(random() % 8 ? cat("c", random() % 3) : "");
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    }
  });
  std::vector<std::thread> clients;
  std::atomic<int> ran = 0;
  for (int client = 0; client < 3; ++client)
    clients.emplace_back([&, client] {
      std::mt19937 random(client);
      for (int i = 0; i < 60; ++i) {
        ProgressRecorder recorder;
        const auto exchange = std::make_shared<TestingExchange>();
        JobSpec job =
            job_of(std::string(1 + random() % 40, 'a'), static_cast<int32_t>(random() % 200), cat("c", client));
        job.request.sampling.seed = random();
        if (random() % 2) job.text.stops = {"a", "w3"};
        try {
          const auto handle = tiny.service().run(std::move(job), exchange, recorder.listener());
          if (random() % 3 == 0) recorder.wait_for_tokens(random() % 8);
          if (random() % 3 == 0) exchange->leave();
          if (random() % 3 == 0) handle->cancel();
          recorder.wait();
          ++ran;
        } catch (const ApiError& error) {
          EXPECT_EQ(error.status, 503);
        }
      }
    });
  for (std::thread& client : clients) client.join();
  stop = true;
  aborter.join();
  EXPECT_GT(ran, 0);
  EXPECT_TRUE(tiny.wait_until_idle());
}

}  // namespace
}  // namespace quire::serve
