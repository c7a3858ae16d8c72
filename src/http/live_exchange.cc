#include "http/live_exchange.h"

#include <utility>

#include "base/check.h"
#include "http/response_text.h"

namespace quire::http {

LiveExchange::LiveExchange(std::shared_ptr<AnswerSink> sink, Request request, const AnswerTerms& terms,
                           std::optional<BodyBudget::Share> held)
    : sink_(std::move(sink)), held_(std::move(held)), request_(std::move(request)), terms_(terms) {}

LiveExchange::~LiveExchange() { answer_failure(); }

void LiveExchange::sign(Response& response) const {
  if (!request_.id.empty()) response.headers.emplace_back("x-request-id", request_.id);
}

void LiveExchange::respond(Response response) {
  sign(response);
  const bool keep_alive = keeps_alive();
  std::string head = response_head(response, Framing::length, keep_alive, terms_.http_1_0);
  Actions dropped;  // destroyed after the lock: they may hold the last reference to anything
  const std::lock_guard lock(mutex_);
  check(state_ == State::unanswered, "a request was answered twice");
  state_ = State::answered;
  dropped.swap(when_gone_);
  sink_->send(std::move(head));
  if (!terms_.without_body && has_body(response.status)) sink_->send(std::move(response.body));
  sink_->finish(keep_alive);
}

void LiveExchange::start_stream(Response head) {
  check(has_body(head.status), "a stream with status ", head.status, ", which has no body");
  sign(head);
  const bool keep_alive = keeps_alive() && !terms_.http_1_0;
  const Framing framing = terms_.http_1_0 ? Framing::until_close : Framing::chunks;
  std::string text = response_head(head, framing, keep_alive, terms_.http_1_0);
  const std::lock_guard lock(mutex_);
  check(state_ == State::unanswered, "a request was answered twice");
  state_ = State::streaming;
  stream_keeps_alive_ = keep_alive;
  sink_->send(std::move(text));
  send_body(std::move(head.body));
}

void LiveExchange::write(std::string part) {
  const std::lock_guard lock(mutex_);
  check(state_ == State::streaming, "a part of an answer was written outside of a stream");
  send_body(std::move(part));
}

void LiveExchange::send_body(std::string part) {
  if (part.empty() || terms_.without_body) return;
  sink_->send(terms_.http_1_0 ? std::move(part) : chunk(part));
}

void LiveExchange::finish() {
  Actions dropped;
  const std::lock_guard lock(mutex_);
  check(state_ == State::streaming, "a stream was finished that does not run");
  state_ = State::answered;
  dropped.swap(when_gone_);
  if (!terms_.http_1_0 && !terms_.without_body) sink_->send(std::string(kLastChunk));
  sink_->finish(stream_keeps_alive_);
}

void LiveExchange::on_gone(std::function<void()> action) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::answered) return;
    if (!left_) {
      when_gone_.push_back(std::move(action));
      return;
    }
  }
  post(std::move(action));
}

void LiveExchange::post(std::function<void()> task) {
  sink_->post([self = shared_from_this(), task = std::move(task)] { self->run_guarded(task); });
}

// What a task throws must not reach the io thread's loop: there it would end everybody's connections.
void LiveExchange::run_guarded(const std::function<void()>& task) {
  try {
    task();
  } catch (...) {
    fail();
  }
}

void LiveExchange::client_left() {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
    actions.swap(when_gone_);
  }
  for (const auto& action : actions) run_guarded(action);
}

// Nobody will answer any more, so what was to be stopped when the client leaves is stopped now.
void LiveExchange::fail() {
  answer_failure();
  client_left();
}

void LiveExchange::answer_failure() {
  const std::lock_guard lock(mutex_);
  const State before = std::exchange(state_, State::answered);
  if (before == State::streaming) sink_->cut();
  if (before != State::unanswered) return;
  Response error = error_response(500, "the server failed at this request");
  sign(error);
  sink_->send(response_head(error, Framing::length, false, terms_.http_1_0));
  if (!terms_.without_body) sink_->send(error.body);
  sink_->finish(false);
}

}  // namespace quire::http
