#include "serve/call.h"

#include <exception>
#include <utility>

namespace quire::serve {

Call::Call(std::shared_ptr<http::Exchange> exchange, http::Headers headers, OnAnswered on_answered)
    : exchange_(std::move(exchange)), headers_(std::move(headers)), on_answered_(std::move(on_answered)) {}

std::shared_ptr<Call> Call::watch(std::shared_ptr<http::Exchange> exchange, http::Headers headers,
                                  OnAnswered on_answered) {
  const std::shared_ptr<Call> call(new Call(std::move(exchange), std::move(headers), std::move(on_answered)));
  call->exchange_->on_gone([weak = std::weak_ptr(call)] {
    const auto alive = weak.lock();
    if (!alive) return;
    const std::lock_guard lock(alive->mutex_);
    alive->gone_ = true;
  });
  return call;
}

Call::~Call() { report(false); }

void Call::respond(http::Response response) {
  begin(response);
  exchange_->respond(std::move(response));
  report(true);
}

void Call::start_stream(http::Response head) {
  begin(head);
  exchange_->start_stream(std::move(head));
}

void Call::finish() {
  exchange_->finish();
  report(true);
}

void Call::begin(http::Response& response) {
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  const std::lock_guard lock(mutex_);
  if (status_ == 0) status_ = response.status;  // a second answer is for the exchange to refuse
}

void Call::post(std::function<void()> given) {
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

void Call::release() {
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

bool Call::begun() const {
  const std::lock_guard lock(mutex_);
  return status_ != 0;
}

void Call::count_tokens(int32_t prompt, int32_t generated) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += prompt;
  generated_tokens_ += generated;
}

void Call::note_failure(std::string what) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(what);
}

void Call::report(bool complete) {
  constexpr int kClientClosed = 499, kFailed = 500;
  Answered answered;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(reported_, true)) return;
    answered = {.method = request().method,
                .path = request().path,
                .peer = request().peer,
                .status = status_            ? status_
                          : failure_.empty() ? kClientClosed
                                             : kFailed,
                .complete = complete && !gone_,
                .time = std::chrono::steady_clock::now() - began_,
                .prompt_tokens = prompt_tokens_,
                .generated_tokens = generated_tokens_,
                .failure = failure_};
  }
  if (on_answered_) on_answered_(answered);
}

void count_tokens(http::Exchange& exchange, int32_t prompt, int32_t generated) {
  if (auto* call = dynamic_cast<Call*>(&exchange)) call->count_tokens(prompt, generated);
}

void note_failure(http::Exchange& exchange, const std::string& what) {
  if (auto* call = dynamic_cast<Call*>(&exchange)) call->note_failure(what);
}

}  // namespace quire::serve
