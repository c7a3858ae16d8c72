#include "serve/live_job.h"

#include <utility>

#include "serve/watched_exchange.h"

namespace quire::serve {
namespace {

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

LiveJob::LiveJob(std::shared_ptr<JobResources> resources, Name name, TextRules rules,
                 std::shared_ptr<http::Exchange> exchange, OnProgress on_progress)
    : resources_(std::move(resources)),
      name_(std::move(name)),
      began_(exchange->request().arrived),
      text_(resources_->tokenizer, std::move(rules)),
      on_progress_(std::move(on_progress)),
      exchange_(std::move(exchange)) {}

void LiveJob::start(engine::Request request, const TimeLimits& limits) {
  const std::shared_ptr<http::Exchange> exchange = exchange_;
  number_ = resources_->registry.add(shared_from_this());
  try {
    submit(std::move(request));
  } catch (...) {
    resources_->registry.remove(number_);
    throw;
  }
  resources_->metrics.request_started();
  watch_time(limits);
  exchange->on_gone([job = weak_from_this()] {
    if (const auto alive = job.lock()) alive->cancel();
  });
}

// The engine may call back, and somebody may cancel, before the request's id is noted here.
void LiveJob::submit(engine::Request request) {
  const auto listener = [job = shared_from_this()](const engine::Output& output) { job->on_output(output); };
  const engine::RequestId id = resources_->engine.submit(std::move(request), listener);
  {
    const std::lock_guard lock(mutex_);
    id_ = id;
    if (!cancelled_for_) return;
  }
  resources_->engine.cancel(id);
}

// --- how it can end early

void LiveJob::watch_time(const TimeLimits& limits) {
  std::vector<Deadlines::Key> keys;
  const auto watch = [&](std::chrono::milliseconds limit, auto action) {
    if (limit.count() == 0) return;
    keys.push_back(resources_->deadlines.add(began_ + limit, [job = weak_from_this(), action] {
      if (const auto alive = job.lock()) action(*alive);
    }));
  };
  watch(limits.waiting, [](LiveJob& job) { job.waited_too_long(); });
  watch(limits.running, [](LiveJob& job) { job.cancel_for(EndReason::timeout); });
  const std::lock_guard lock(mutex_);
  deadlines_ = std::move(keys);
}

// Only the engine knows whether it still waits.
void LiveJob::waited_too_long() {
  {
    const std::lock_guard lock(mutex_);
    gave_up_waiting_ = true;
  }
  resources_->engine.give_up_waiting(*id_);
}

void LiveJob::cancel_for(EndReason reason) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || cancelled_for_) return;
    cancelled_for_ = reason;
    if (!id_) return;  // submit() will see it
  }
  resources_->engine.cancel(*id_);
}

// --- from the engine to the exchange

void LiveJob::on_output(const engine::Output& output) {
  std::shared_ptr<http::Exchange> exchange;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    mail_.push_back({output, Clock::now()});
    if (std::exchange(delivery_posted_, true)) return;
    exchange = exchange_;
  }
  exchange->post([job = shared_from_this()] { job->deliver(); });
}

std::vector<LiveJob::Event> LiveJob::take_mail() {
  const std::lock_guard lock(mutex_);
  delivery_posted_ = false;
  return std::exchange(mail_, {});
}

void LiveJob::deliver() {
  if (!on_progress_) return;  // has ended: what came after a stop text, say
  Progress progress;
  for (const Event& event : take_mail())
    if (!progress.end) take(event, progress);
  if (!progress.end) return on_progress_(std::move(progress));
  settle_end(progress);
  note(*exchange_, [&](Answered& so_far) {
    so_far.prompt_tokens += progress.prompt_tokens;
    so_far.generated_tokens += progress.generated;
    if (progress.end->reason == EndReason::failed) so_far.failure = progress.end->error;
  });
  const Totals totals = totals_of(progress);
  try {
    std::exchange(on_progress_, nullptr)(std::move(progress));
  } catch (...) {  // the exchange's business; the job is over all the same
    close(totals);
    throw;
  }
  close(totals);
}

void LiveJob::take(const Event& event, Progress& progress) {
  if (event.output.token >= 0) count_token(event);
  text_.on_output(event.output, progress);
  if (text_.stopped()) cancel();
}

void LiveJob::count_token(const Event& event) {
  if (event.output.generated <= 1)
    resources_->metrics.first_token(seconds(event.time - began_), event.output.queued_seconds);
  else
    resources_->metrics.inter_token(seconds(event.time - last_token_), 1);
  last_token_ = event.time;
}

// The engine says that a request was cancelled; only here it is known why.
void LiveJob::settle_end(Progress& progress) {
  End& end = *progress.end;
  if (end.reason != EndReason::cancelled) return;
  const std::lock_guard lock(mutex_);
  const bool never_ran = progress.generated == 0;
  if (cancelled_for_)
    end.reason = *cancelled_for_;
  else if (gave_up_waiting_ && never_ran)
    end.reason = EndReason::timeout;
  if (end.reason == EndReason::timeout && never_ran) end.error = "the server is busy: the request waited too long";
}

LiveJob::Totals LiveJob::totals_of(const Progress& last) {
  const bool aborted = last.end->reason == EndReason::cancelled || last.end->reason == EndReason::timeout;
  return {last.prompt_tokens, last.cached_tokens, last.generated, aborted};
}

void LiveJob::close(const Totals& totals) {
  std::shared_ptr<http::Exchange> exchange;  // let go without the lock
  std::vector<Deadlines::Key> deadlines;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    exchange = std::move(exchange_);
    deadlines = std::move(deadlines_);
    mail_.clear();
  }
  for (const Deadlines::Key& key : deadlines) resources_->deadlines.call_off(key);
  resources_->metrics.request_ended(seconds(Clock::now() - began_), totals.prompt, totals.cached, totals.generated,
                                    totals.aborted);
  resources_->registry.remove(number_);
}

}  // namespace quire::serve
