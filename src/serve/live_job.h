// One job on its way: the engine's outputs into a mailbox, and out of it, in the exchange's order, as progress.
//
//   engine thread     on_output: an output into the mailbox; a delivery is posted if none is on its way
//   io threads        deliver: what lies in the mailbox becomes text; the last time with an end
//   any thread        cancel, out_of_time, waited_too_long
//
// Everybody who may still call holds a reference; the job lets go of its exchange with its end. No lock is held while
// anything outside is called.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "http/exchange.h"
#include "serve/deadlines.h"
#include "serve/job_registry.h"
#include "serve/metrics.h"
#include "serve/service.h"
#include "serve/text_stream.h"

namespace quire::serve {

// What jobs need of their service. Its owner keeps it until no job is left.
struct JobResources {
  engine::Engine& engine;
  const text::Tokenizer& tokenizer;
  Metrics metrics;
  JobRegistry registry = {};
  Deadlines deadlines = {};
};

class LiveJob final : public JobHandle, public std::enable_shared_from_this<LiveJob> {
 public:
  struct Name {  // under which it can be aborted
    std::string rid;
    int32_t key;  // by whom; Caller::key
  };
  LiveJob(std::shared_ptr<JobResources> resources, Name name, TextRules rules, std::shared_ptr<http::Exchange> exchange,
          OnProgress on_progress);

  const Name& name() const { return name_; }

  struct TimeLimits {
    std::chrono::milliseconds waiting, running;  // 0: none
  };
  // Once. What the engine refuses is thrown, and the job is over without an end.
  void start(engine::Request request, const TimeLimits& limits);
  void cancel() override { cancel_for(EndReason::cancelled); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Event {
    engine::Output output;
    Clock::time_point time;
  };

  struct Totals {
    int32_t prompt, cached, generated;
    bool aborted;
  };

  void submit(engine::Request request);
  void watch_time(const TimeLimits& limits);
  void waited_too_long();
  void cancel_for(EndReason reason);
  void on_output(const engine::Output& output);
  void deliver();
  std::vector<Event> take_mail();
  void take(const Event& event, Progress& progress);
  void count_token(const Event& event);
  void settle_end(Progress& progress);
  static Totals totals_of(const Progress& last);
  void close(const Totals& totals);

  const std::shared_ptr<JobResources> resources_;
  const Name name_;
  const Clock::time_point began_;  // when the request arrived
  uint64_t number_ = 0;            // in the registry, since before the engine knew of it

  // Of the deliveries, which come one at a time.
  TextStream text_;
  OnProgress on_progress_;
  Clock::time_point last_token_;

  std::mutex mutex_;  // of what follows
  std::shared_ptr<http::Exchange> exchange_;
  std::vector<Event> mail_;
  bool delivery_posted_ = false;
  bool closed_ = false;
  bool gave_up_waiting_ = false;
  std::optional<EndReason> cancelled_for_;
  std::optional<engine::RequestId> id_;
  std::vector<Deadlines::Key> deadlines_;
};

}  // namespace quire::serve
