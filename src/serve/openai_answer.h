// A call of OpenAI's interface that is being answered: its jobs, the beginning and end of what is sent, and what went
// wrong. The kinds of answers derive from it.
//
// Everything happens in the exchange's order, so nothing here is locked. Nothing is sent before the first progress (or
// the first heartbeat), so what fails until then still has a status of its own; what fails later is the stream's last
// event.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "http/exchange.h"
#include "serve/api_error.h"
#include "serve/openai_stream.h"
#include "serve/service.h"

namespace quire::serve {

class OpenAiAnswer : public std::enable_shared_from_this<OpenAiAnswer> {
 public:
  struct Terms {
    AnswerHead head;
    bool stream = false, stream_usage = false;
    size_t choices = 1;
    size_t choices_of_a_prompt = 1;  // in a row: its tokens are counted once
    LogprobBudget::Share logprobs = {};
  };
  OpenAiAnswer(std::shared_ptr<http::Exchange> exchange, Terms terms);
  virtual ~OpenAiAnswer() = default;

  void run(std::vector<JobSpec> jobs, Service& service);  // a job for each choice

 protected:
  void on_progress(size_t choice, Progress progress);

  // What came for one choice. If the answer is a stream, its chunks are added to the part.
  virtual void take(size_t choice, Progress& progress, std::string& part) = 0;
  virtual std::string choices() = 0;  // of an answer that is no stream, at its end: JSON, an array
  virtual int64_t reasoning_tokens() const { return 0; }

  const Terms& terms() const { return terms_; }
  const ChunkWriter& chunks() const { return chunks_; }

 private:
  void start(std::vector<JobSpec> jobs, Service& service);
  void begin_stream();
  bool beat();
  void count(size_t choice, const Progress& progress);
  void send_part(std::string part);
  void send_whole();
  void fail(const ApiError& error);
  Usage usage() const;

  const std::shared_ptr<http::Exchange> exchange_;
  const Terms terms_;
  const ChunkWriter chunks_;
  std::vector<std::shared_ptr<JobHandle>> jobs_;
  std::vector<Usage> usages_;  // [choices]
  size_t running_;             // choices without an end
  bool begun_ = false;         // the stream
  bool has_progress_ = false;  // of any choice
  bool over_ = false;
};

}  // namespace quire::serve
