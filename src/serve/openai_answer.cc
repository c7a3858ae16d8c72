#include "serve/openai_answer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "serve/api_error.h"
#include "serve/event_stream.h"
#include "serve/json_text.h"
#include "serve/watched_exchange.h"

namespace quire::serve {

OpenAiAnswer::OpenAiAnswer(std::shared_ptr<http::Exchange> exchange, Terms terms)
    : exchange_(std::move(exchange)),
      terms_(std::move(terms)),
      chunks_(terms_.head, terms_.stream_usage),
      usages_(terms_.choices),
      running_(terms_.choices) {}

// Begun in the exchange's order, so that no progress comes before all jobs are known here.
void OpenAiAnswer::run(std::vector<JobSpec> jobs, Service& service) {
  const auto shared = std::make_shared<std::vector<JobSpec>>(std::move(jobs));  // tasks are copied
  exchange_->post([self = shared_from_this(), shared, &service] { self->start(std::move(*shared), service); });
}

void OpenAiAnswer::start(std::vector<JobSpec> jobs, Service& service) {
  try {
    for (size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].follows = i > 0;
      jobs_.push_back(service.run(std::move(jobs[i]), exchange_, [self = shared_from_this(), i](Progress progress) {
        self->on_progress(i, std::move(progress));
      }));
    }
    if (terms_.stream)
      beat_while_waiting(service, exchange_, [weak = weak_from_this()] {
        const auto self = weak.lock();
        return self && self->beat();
      });
  } catch (const ApiError& error) {
    fail(error);
  }
}

bool OpenAiAnswer::beat() {
  if (over_ || has_progress_) return false;
  begin_stream();
  exchange_->write(std::string(kHeartbeat));
  return true;
}

void OpenAiAnswer::begin_stream() {
  if (!std::exchange(begun_, true)) exchange_->start_stream(event_stream_head());
}

void OpenAiAnswer::on_progress(size_t choice, Progress progress) {
  if (over_) return;
  has_progress_ = true;
  count(choice, progress);
  const std::optional<ApiError> error = progress.end ? error_of(*progress.end) : std::nullopt;
  if (error) return fail(*error);
  if (progress.end) --running_;
  std::string part;
  take(choice, progress, part);
  if (terms_.stream)
    send_part(std::move(part));
  else if (running_ == 0)
    send_whole();
}

void OpenAiAnswer::count(size_t choice, const Progress& progress) {
  usages_[choice] = {.prompt_tokens = progress.prompt_tokens,
                     .cached_tokens = progress.cached_tokens,
                     .completion_tokens = progress.generated};
}

void OpenAiAnswer::send_part(std::string part) {
  begin_stream();
  if (running_ == 0) {
    chunks_.append_usage(part, usage());
    part += kDoneEvent;
  }
  if (!part.empty()) exchange_->write(std::move(part));
  if (running_ > 0) return;
  over_ = true;
  exchange_->finish();
}

void OpenAiAnswer::send_whole() {
  over_ = true;
  std::string body = dumped(terms_.head.json());
  body.pop_back();
  body.append(R"(,"choices":)").append(choices());
  body.append(R"(,"usage":)").append(dumped(usage().json())).append("}");
  exchange_->respond({.body = std::move(body)});
}

void OpenAiAnswer::fail(const ApiError& error) {
  over_ = true;
  for (const auto& job : jobs_) job->cancel();
  if (!begun_) return exchange_->respond(error_response(error, Interface::openai));
  note(*exchange_, [&](Answered& so_far) { so_far.reason = refusal_reason(error_response(error, Interface::openai)); });
  exchange_->write(event(dumped(error_body(error, Interface::openai))).append(kDoneEvent));
  exchange_->finish();
}

Usage OpenAiAnswer::usage() const {
  Usage all{.reasoning_tokens = reasoning_tokens()};
  for (size_t i = 0; i < usages_.size(); ++i) {
    all.completion_tokens += usages_[i].completion_tokens;
    if (i % terms_.choices_of_a_prompt != 0) continue;
    all.prompt_tokens += usages_[i].prompt_tokens;
    all.cached_tokens += usages_[i].cached_tokens;
  }
  return all;
}

}  // namespace quire::serve
