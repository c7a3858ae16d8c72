#include "serve/watched_exchange.h"

#include <exception>
#include <utility>

#include "serve/api_error.h"
#include "serve/ignored.h"

namespace quire::serve {

WatchedExchange::WatchedExchange(std::shared_ptr<http::Exchange> exchange, http::Headers headers,
                                 OnAnswered on_answered)
    : exchange_(std::move(exchange)), headers_(std::move(headers)), on_answered_(std::move(on_answered)) {}

std::shared_ptr<WatchedExchange> WatchedExchange::watch(std::shared_ptr<http::Exchange> exchange, http::Headers headers,
                                                        OnAnswered on_answered) {
  const std::shared_ptr<WatchedExchange> watched(
      new WatchedExchange(std::move(exchange), std::move(headers), std::move(on_answered)));
  watched->exchange_->on_gone([weak = std::weak_ptr(watched)] {
    if (const auto alive = weak.lock()) alive->note([](Answered& so_far) { so_far.client_left = true; });
  });
  return watched;
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
  if (!answered_.ignored.empty()) response.headers.emplace_back(kIgnoredHeader, answered_.ignored);
  if (answered_.status == 0) {  // a second answer is for the exchange to refuse
    answered_.status = response.status;
    answered_.reason = refusal_reason(response);
  }
}

void WatchedExchange::post(std::function<void()> given) {
  std::function<void()> task = [weak = weak_from_this(), given = std::move(given)] {
    try {
      given();
    } catch (const std::exception& error) {  // the exchange answers it, and does not say why
      if (const auto alive = weak.lock()) alive->note([&](Answered& so_far) { so_far.failure = error.what(); });
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
  return answered_.client_left;
}

bool WatchedExchange::begun() const {
  const std::lock_guard lock(mutex_);
  return answered_.status != 0;
}

void WatchedExchange::note(const Note& change) {
  const std::lock_guard lock(mutex_);
  change(answered_);
}

void WatchedExchange::report(bool complete) {
  constexpr int kClientClosed = 499, kFailed = 500;
  Answered answered;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(reported_, true)) return;
    answered = answered_;
  }
  answered.method = request().method;
  answered.path = request().path;
  answered.peer = request().peer;
  answered.id = request().id;
  if (answered.status == 0) answered.status = answered.failure.empty() ? kClientClosed : kFailed;
  answered.complete = complete && !answered.client_left;
  answered.time = std::chrono::steady_clock::now() - began_;
  if (on_answered_) on_answered_(answered);
}

void note(http::Exchange& exchange, const Note& change) {
  if (auto* watched = dynamic_cast<WatchedExchange*>(&exchange)) watched->note(change);
}

}  // namespace quire::serve
