// The exchange of a connection: the rules of answering, and the text of the answer. What becomes of the text is the
// sink's business, so nothing here knows sockets.
//
// An exchange that everybody let go of without an answer is answered with 500; one in the middle of a stream cuts the
// connection, so that the client does not take the part for the whole.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "http/body_budget.h"
#include "http/exchange.h"
#include "http/request_head.h"

namespace quire::http {

// Called from any thread, and does nothing once the client has left.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void send(std::string bytes) = 0;
  virtual void finish(bool keep_alive) = 0;  // what was sent is the whole answer
  virtual void cut() = 0;
  virtual bool last_answer() const = 0;  // the connection will not be kept
  virtual void post(std::function<void()> task) = 0;
};

class LiveExchange final : public Exchange, public std::enable_shared_from_this<LiveExchange> {
 public:
  // held: the body's share of the budget, which lives as long as the body does, whether or not its client stays.
  LiveExchange(std::shared_ptr<AnswerSink> sink, Request request, const AnswerTerms& terms,
               std::optional<BodyBudget::Share> held = std::nullopt);
  ~LiveExchange() override;

  const Request& request() const override { return request_; }
  void respond(Response response) override;
  void start_stream(Response head) override;
  void write(std::string part) override;
  void finish() override;
  void on_gone(std::function<void()> action) override;
  void post(std::function<void()> task) override;

  void client_left();  // on an io thread; a second call does nothing
  void fail();         // on an io thread, the handler threw: 500 or the end of its stream, and the actions of on_gone

 private:
  enum class State { unanswered, streaming, answered };
  using Actions = std::vector<std::function<void()>>;

  bool keeps_alive() const { return terms_.keep_alive && !sink_->last_answer(); }
  void sign(Response& response) const;  // with the request's id
  void send_body(std::string part);
  void answer_failure();
  void run_guarded(const std::function<void()>& task);

  const std::shared_ptr<AnswerSink> sink_;
  const std::optional<BodyBudget::Share> held_;
  const Request request_;
  const AnswerTerms terms_;

  std::mutex mutex_;  // also keeps parts in the order of their calls
  State state_ = State::unanswered;
  bool stream_keeps_alive_ = false;
  bool left_ = false;
  Actions when_gone_;
};

}  // namespace quire::http
