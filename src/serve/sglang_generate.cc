#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "serve/api_error.h"
#include "serve/event_stream.h"
#include "serve/request_reader.h"
#include "serve/sglang.h"
#include "serve/sglang_answer.h"
#include "serve/sglang_generate_request.h"
#include "serve/watched_exchange.h"

namespace quire::serve {

namespace {

// A call that runs: its answers so far, and how they are sent. The exchange's order is its lock.
class SglangAnswer : public std::enable_shared_from_this<SglangAnswer> {
 public:
  SglangAnswer(std::shared_ptr<http::Exchange> exchange, const Service& service, const GenerateBody& body)
      : exchange_(std::move(exchange)),
        is_list_(body.is_list),
        streams_(body.stream),
        logprobs_(body.logprobs),
        open_(body.texts.size()) {
    for (const GenerateText& text : body.texts) answers_.emplace_back(service.tokenizer(), text.job.rid, text.logprobs);
  }

  // Begun in the exchange's order, so that no progress comes before all jobs are known here.
  void run(std::vector<GenerateText> texts, Service& service) {
    const auto shared = std::make_shared<std::vector<GenerateText>>(std::move(texts));  // tasks are copied
    exchange_->post([self = shared_from_this(), shared, &service] { self->start(std::move(*shared), service); });
  }

 private:
  void start(std::vector<GenerateText> texts, Service& service) {
    std::vector<std::shared_ptr<JobHandle>> running;
    try {
      for (size_t i = 0; i < texts.size(); ++i) {
        texts[i].job.follows = i > 0;
        running.push_back(
            service.run(std::move(texts[i].job), exchange_,
                        [self = shared_from_this(), i](const Progress& progress) { self->on_progress(i, progress); }));
      }
      if (streams_)
        beat_while_waiting(service, exchange_, [weak = weak_from_this()] {
          const auto self = weak.lock();
          return self && self->beat();
        });
    } catch (const ApiError& error) {
      given_up_ = true;
      for (const auto& job : running) job->cancel();
      exchange_->respond(error_response(error, Interface::sglang));
    }
  }

  bool beat() {
    if (has_progress_ || given_up_) return false;
    begin_stream();
    exchange_->write(std::string(kHeartbeat));
    return true;
  }

  void begin_stream() {
    if (!std::exchange(begun_, true)) exchange_->start_stream(event_stream_head());
  }

  void on_progress(size_t i, const Progress& progress) {
    if (given_up_) return;
    has_progress_ = true;
    GenerateAnswer& answer = answers_[i];
    answer.on_progress(progress);
    if (progress.end) --open_;
    if (streams_)
      send_part(answer, i);
    else if (open_ == 0)
      send_all();
  }

  // An error of the only text, or one that is the call's, that comes before anything else still has a status of its
  // own: routers try elsewhere.
  void send_part(GenerateAnswer& answer, size_t i) {
    const std::optional<ApiError> error = answer.end() ? error_of(*answer.end()) : std::nullopt;
    if (error && !begun_ && (answers_.size() == 1 || answer.end()->reason == EndReason::refused)) {
      given_up_ = true;
      return exchange_->respond(error_response(*error, Interface::sglang));
    }
    begin_stream();
    if (error)
      note(*exchange_,
           [&](Answered& so_far) { so_far.reason = refusal_reason(error_response(*error, Interface::sglang)); });
    exchange_->write(event(error ? error_response(*error, Interface::sglang).body
                                 : answer.part(is_list_ ? std::optional(i) : std::nullopt)));
    if (open_ > 0) return;
    exchange_->write(std::string(kDoneEvent));
    exchange_->finish();
  }

  void send_all() {
    std::string body;
    for (const GenerateAnswer& answer : answers_) {
      if (const auto error = error_of(*answer.end()))
        return exchange_->respond(error_response(*error, Interface::sglang));
      body.append(body.empty() ? "" : ",").append(answer.json());
    }
    exchange_->respond({.body = is_list_ ? "[" + body + "]" : body});
  }

  const std::shared_ptr<http::Exchange> exchange_;
  const bool is_list_, streams_;
  const LogprobBudget::Share logprobs_;
  std::vector<GenerateAnswer> answers_;
  size_t open_;                // answers that have not ended
  bool begun_ = false;         // the stream
  bool has_progress_ = false;  // of any answer
  bool given_up_ = false;      // the error is the answer
};

}  // namespace

void generate(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller) {
  GenerateBody body = read_generate(body_of(exchange->request()), service, caller);
  note(*exchange, [&](Answered& so_far) { so_far.ignored = body.ignored; });
  const auto answer = std::make_shared<SglangAnswer>(std::move(exchange), service, body);
  answer->run(std::move(body.texts), service);
}

}  // namespace quire::serve
