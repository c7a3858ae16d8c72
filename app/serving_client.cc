#include "serving_client.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/check.h"
#include "base/descriptor_limit.h"
#include "progress.h"
#include "serving_arrivals.h"
#include "serving_connection.h"
#include "serving_readiness.h"
#include "serving_socket.h"
#include "timing.h"

namespace quire::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

constexpr std::chrono::seconds kPatience{300};
constexpr std::chrono::milliseconds kBetweenReports{500};

void read_stream(const AnswerReader& answer, Time began, RequestOutcome& outcome) {
  const std::vector<Time>& times = answer.token_times();
  if (!times.empty()) outcome.first_seconds = seconds_between(began, times.front());
  for (size_t i = 1; i < times.size(); ++i) outcome.gaps.push_back(seconds_between(times[i - 1], times[i]));
  const Usage usage = usage_of(answer.last_event());
  outcome.prompt_tokens = usage.prompt_tokens.value_or(0);
  outcome.cached_tokens = usage.cached_tokens.value_or(0);
  outcome.output_tokens = usage.completion_tokens.value_or(std::ssize(times));
  if (times.empty() || usage.failed) outcome.error = "the stream ended with " + answer.last_event();
}

RequestOutcome outcome_of(const Connection& connection, Time now) {
  const AnswerReader& answer = connection.answer();
  RequestOutcome outcome;
  outcome.total_seconds = seconds_between(connection.began(), now);
  outcome.error = connection.failure();
  if (!outcome.error.empty()) return outcome;
  outcome.status = answer.status();
  if (outcome.status == 200)
    read_stream(answer, connection.began(), outcome);
  else
    outcome.error = answer.body();
  return outcome;
}

class Client {
 public:
  Client(const Load& load, const ClientOptions& options) : load_(load), options_(options) {
    allow_descriptors(options.concurrency + options.idle_connections + 64);
    for (int32_t i = 0; i < options.concurrency + options.idle_connections; ++i)
      connections_.push_back(std::make_unique<Connection>(options.address, readiness_, static_cast<size_t>(i)));
  }

  LoadOutcome run() {
    check_reachable(options_.address);
    open_idle();
    const Time begin = Clock::now();
    Time last = begin, said = begin;
    Arrivals arrivals(options_.arrivals, begin);
    LoadOutcome outcome{};
    Progress progress;
    while (true) {
      start_due(arrivals);
      if (busy_ == 0 && arrivals.exhausted(Clock::now())) break;
      const bool waits_for_arrival = options_.arrivals.rate > 0 && busy_ < options_.concurrency;
      for (const size_t index : wait(waits_for_arrival ? arrivals.next() : Time::max())) {
        const Time now = Clock::now();
        if (!connections_[index]->advance(now)) continue;
        outcome.requests.push_back(outcome_of(*connections_[index], now));
        --busy_;
        last = now;
      }
      if (const Time now = Clock::now(); now >= said + kBetweenReports) {
        progress.say(cat(outcome.requests.size(), " requests are answered, ", busy_, " under way"));
        said = now;
      }
    }
    outcome.seconds = seconds_between(begin, last);
    outcome.idle_at_end = open_now(options_.concurrency);
    return outcome;
  }

 private:
  void start_due(Arrivals& arrivals) {
    for (int32_t i = 0; i < options_.concurrency && busy_ < options_.concurrency; ++i) {
      Connection& connection = *connections_[static_cast<size_t>(i)];
      if (connection.busy()) continue;
      const int64_t number = arrivals.begun();
      const std::optional<Time> due = arrivals.due(Clock::now());
      if (!due) return;
      connection.ask(load_.bytes(number), *due);
      ++busy_;
    }
  }

  // The connections that can get on; maybe none.
  std::vector<size_t> wait(Time until) {
    const Time patience = Clock::now() + kPatience;
    std::vector<size_t> ready = readiness_.wait(std::min(until, patience));
    check(!ready.empty() || Clock::now() < patience, "the server has said nothing for ", kPatience.count(), " s");
    return ready;
  }

  // One after the other: a burst of connections is not what is measured.
  void open_idle() {
    for (size_t i = static_cast<size_t>(options_.concurrency); i < connections_.size(); ++i) {
      Connection& connection = *connections_[i];
      connection.ask(load_.health_check(), Clock::now());
      while (connection.busy())
        for (const size_t index : wait(Time::max())) connections_[index]->advance(Clock::now());
      check(connection.failure().empty(), "an idle connection: ", connection.failure());
    }
  }

  int32_t open_now(int32_t from) const {
    return static_cast<int32_t>(std::count_if(connections_.begin() + from, connections_.end(),
                                              [](const auto& connection) { return connection->is_open(); }));
  }

  const Load& load_;
  const ClientOptions& options_;
  Readiness readiness_;
  std::vector<std::unique_ptr<Connection>> connections_;  // those of the load, then the idle ones
  int32_t busy_ = 0;
};

}  // namespace

LoadOutcome run_load(const Load& load, const ClientOptions& options) { return Client(load, options).run(); }

}  // namespace quire::bench
