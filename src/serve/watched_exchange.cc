#include "serve/watched_exchange.h"

#include <exception>
#include <utility>

#include "serve/ignored.h"
#include "serve/refusal_reason.h"

namespace quire::serve {

WatchedExchange::WatchedExchange(std::shared_ptr<http::Exchange> exchange, http::Headers headers,
                                 OnAnswered on_answered)
    : exchange_(std::move(exchange)), headers_(std::move(headers)), on_answered_(std::move(on_answered)) {}

std::shared_ptr<WatchedExchange> WatchedExchange::watch(std::shared_ptr<http::Exchange> exchange, http::Headers headers,
                                                        OnAnswered on_answered) {
  const std::shared_ptr<WatchedExchange> call(
      new WatchedExchange(std::move(exchange), std::move(headers), std::move(on_answered)));
  call->exchange_->on_gone([weak = std::weak_ptr(call)] {
    const auto alive = weak.lock();
    if (!alive) return;
    const std::lock_guard lock(alive->mutex_);
    alive->gone_ = true;
  });
  return call;
}

WatchedExchange::~WatchedExchange() { report(false); }

void WatchedExchange::respond(http::Response response) {
  begin(response);
  exchange_->respond(std::move(response));
  report(true);
}

void WatchedExchange::start_stream(http::Response head) {
  begin(head);
  exchange_->start_stream(std::move(head));
}

void WatchedExchange::finish() {
  exchange_->finish();
  report(true);
}

void WatchedExchange::begin(http::Response& response) {
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  const std::lock_guard lock(mutex_);
  if (!ignored_.empty()) response.headers.emplace_back(kIgnoredHeader, ignored_);
  if (status_ == 0) {  // a second answer is for the exchange to refuse
    status_ = response.status;
    reason_ = refusal_reason(response);
  }
}

void WatchedExchange::post(std::function<void()> given) {
  std::function<void()> task = [call = weak_from_this(), given = std::move(given)] {
    try {
      given();
    } catch (const std::exception& error) {  // the exchange answers it, and does not say why
      if (const auto alive = call.lock()) alive->note_failure(error.what());
      throw;
    }
  };
  {
    const std::lock_guard lock(mutex_);
    if (held_) return waiting_.push_back(std::move(task));
  }
  exchange_->post(std::move(task));
}

void WatchedExchange::release() {
  for (;;) {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        held_ = false;
        return;
      }
      tasks.swap(waiting_);
    }
    for (auto& task : tasks) exchange_->post(std::move(task));
  }
}

bool WatchedExchange::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

bool WatchedExchange::begun() const {
  const std::lock_guard lock(mutex_);
  return status_ != 0;
}

void WatchedExchange::count_tokens(int32_t prompt, int32_t generated) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += prompt;
  generated_tokens_ += generated;
}

void WatchedExchange::note_failure(std::string what) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(what);
}

void WatchedExchange::note_ignored(std::string names) {
  const std::lock_guard lock(mutex_);
  ignored_ = std::move(names);
}

void WatchedExchange::note_reason(std::string reason) {
  const std::lock_guard lock(mutex_);
  reason_ = std::move(reason);
}

void WatchedExchange::name_caller(std::string name) {
  const std::lock_guard lock(mutex_);
  caller_ = std::move(name);
}

void WatchedExchange::report(bool complete) {
  constexpr int kClientClosed = 499, kFailed = 500;
  Answered answered;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(reported_, true)) return;
    answered = {.method = request().method,
                .path = request().path,
                .peer = request().peer,
                .id = request().id,
                .caller = caller_,
                .status = status_            ? status_
                          : failure_.empty() ? kClientClosed
                                             : kFailed,
                .complete = complete && !gone_,
                .client_left = gone_,
                .time = std::chrono::steady_clock::now() - began_,
                .prompt_tokens = prompt_tokens_,
                .generated_tokens = generated_tokens_,
                .reason = reason_,
                .failure = failure_,
                .ignored = ignored_};
  }
  if (on_answered_) on_answered_(answered);
}

void count_tokens(http::Exchange& exchange, int32_t prompt, int32_t generated) {
  if (auto* call = dynamic_cast<WatchedExchange*>(&exchange)) call->count_tokens(prompt, generated);
}

void note_failure(http::Exchange& exchange, const std::string& what) {
  if (auto* call = dynamic_cast<WatchedExchange*>(&exchange)) call->note_failure(what);
}

void note_ignored(http::Exchange& exchange, const std::string& names) {
  if (auto* call = dynamic_cast<WatchedExchange*>(&exchange)) call->note_ignored(names);
}

void note_reason(http::Exchange& exchange, const std::string& reason) {
  if (auto* call = dynamic_cast<WatchedExchange*>(&exchange)) call->note_reason(reason);
}

}  // namespace quire::serve
