// What every interface needs to answer calls: the model's parts, and a way to run jobs on the engine.
//
// A job is one engine request and the rules of its text. Its progress is delivered through the exchange's own order
// (http::Exchange::post), so interfaces need no locks; what comes while a delivery waits is delivered with it. A job
// whose client leaves, whose stop text came or whose time is over is cancelled; its pages are free within one step.
//
//   worker threads    JSON of calls, templates, tokenizing, grammars (routes.h)
//   io threads        text and JSON of answers
//   engine thread     outputs into the job's mailbox, nothing else
//
// Errors   run() throws ApiError: 400 for what can never run, 503 when the queue is full, while loading and while
//          draining (not for what follows). After it returned, everything is told through on_progress, the last time
//          with an end.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cuda.h"
#include "engine/engine.h"
#include "grammar/compiler.h"
#include "http/exchange.h"
#include "serve/logprob_budget.h"
#include "serve/metrics.h"
#include "serve/text_stream.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire::serve {

struct ServiceOptions {
  std::string model_path = {};              // as it was given
  std::string served_model_name = {};       // what callers call it
  std::vector<std::string> aliases = {};    // what they may call it, too
  std::string tool_call_parser = {};        // "hermes", "llama3", "mistral"; "": by the chat template
  std::string reasoning_parser = {};        // "qwen3", "smollm3", "deepseek-r1", "none"; "": by the chat template
  std::string chat_template = {};           // "": the model's own
  ops::SamplingParams sampling = {};        // where a call does not say how tokens are drawn
  std::chrono::milliseconds queue_time{0};  // a request that waits longer gets 503; 0: no limit
  std::chrono::milliseconds run_time{0};    // one that takes longer ends with what it has; 0: no limit
  std::chrono::milliseconds heartbeat{
      15'000};                        // between signs of life in a stream that waits (event_stream.h); 0: none
  int32_t most_choices = 64;          // n, and texts of a batch
  bool strict_fields = false;         // a parameter that is not known gets 400; else it is ignored by name
  int64_t most_logprobs = 16 << 20;   // of all calls together
  int32_t max_completion_tokens = 0;  // of an answer; 0: as many as the context has room for
  int32_t most_jobs_of_a_key = 0;     // that wait or run; more get 503; 0: no limit but the queue's
};

struct JobSpec {
  std::string rid;  // the name under which it can be aborted; n choices of one call share a prefix: "rid", "rid_1", ...
  engine::Request request = {};
  TextRules text = {};
  int32_t key = -1;  // Caller::key: whose it is
  // Not the first of its call. The call was let in with the first: this one may begin while the server drains, counts
  // against no limit of its key, and is not sent away because it waits behind its own call.
  bool follows = false;
};

using OnProgress = std::function<void(Progress)>;

class JobHandle {  // a handle; letting go of it changes nothing
 public:
  virtual ~JobHandle() = default;
  virtual void cancel() = 0;
};

class Service {
 public:
  // All outlive the service; the engine's loop thread is started by the owner.
  struct Parts {
    const text::Tokenizer& tokenizer;
    const model::Model& model;
    engine::Engine& engine;
    const grammar::Compiler& grammars;
  };
  Service(const Parts& parts, const ServiceOptions& options);
  ~Service();

  const ServiceOptions& options() const;
  const text::Tokenizer& tokenizer() const;
  const model::ModelConfig& config() const;
  const engine::EngineOptions& engine_options() const;
  Device device() const;                           // that computes
  const std::string& gpu_name() const;             // "": a CPU computes
  std::optional<cuda::Memory> gpu_memory() const;  // as it is now; none: a CPU computes, or the GPU does not say
  const grammar::Compiler& grammars() const;
  LogprobBudget& logprob_budget() const;
  bool has_chat_template() const;
  // context: messages, tools, add_generation_prompt and more; bos_token and eos_token are added.
  std::string render(nlohmann::ordered_json context) const;
  std::string new_id(std::string_view prefix) const;  // "chatcmpl-" and random letters

  std::shared_ptr<JobHandle> run(JobSpec job, std::shared_ptr<http::Exchange> exchange, OnProgress on_progress);

  // By the beginnings of their names ("": all; for those without a key by the whole name), those of one key or
  // everybody's; returns how many jobs.
  int abort(std::string_view rid_prefix, std::optional<int32_t> key = {});
  void flush_cache();
  engine::EngineStats stats() const;
  Metrics& metrics();
  int32_t jobs() const;  // not ended yet
  // Runs the action after that time, on a thread that must not be held up; not at all once the service ends.
  void later(std::chrono::milliseconds delay, std::function<void()> action);

  bool works() const;  // false: the engine has stopped or broken down

  // Draining: health turns 503 and new jobs are refused; those that run go on.
  void drain();
  bool draining() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::serve
