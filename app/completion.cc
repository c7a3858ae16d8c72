#include "completion.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/check.h"
#include "base/cuda.h"
#include "exit_status.h"
#include "progress.h"
#include "text/stop_text.h"
#include "text/utf8_stream.h"

namespace quire {
namespace {

// What hears the engine's events and turns them into text.
class Hearer {
 public:
  Hearer(const text::Tokenizer& tokenizer, const TextOptions& options, bool logprobs, const OnText& on_text)
      : tokenizer_(tokenizer),
        characters_(options.drop_first_space && tokenizer.drops_first_space()),
        stop_(options.stops),
        wants_logprobs_(logprobs),
        on_text_(on_text) {}

  void hear(const engine::Output& output) {
    result.prompt_tokens = output.prompt_tokens;
    result.cached_tokens = output.cached_tokens;
    result.speculated = output.speculated;
    if (output.token >= 0) take_token(output);
    if (output.finish != engine::Finish::none) finish(output);
  }

  bool finished() const { return finished_; }
  bool found_stop() const { return stop_.found(); }

  Completion result{};
  std::string error;

 private:
  void take_token(const engine::Output& output) {
    if (result.tokens.empty()) result.first_seconds = elapsed();
    result.tokens.push_back(output.token);
    if (wants_logprobs_) result.logprobs.push_back(output.logprobs);
    if (!tokenizer_.is_special(output.token)) show(stop_.push(characters_.push(tokenizer_.piece(output.token))));
  }

  void finish(const engine::Output& output) {
    show(stop_.push(characters_.flush()) + stop_.flush());
    finished_ = true;
    error = output.error;
    result.finish = stop_.found() ? engine::Finish::stop : output.finish;
    result.seconds = elapsed();
  }

  void show(const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    on_text_(text);
  }

  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const text::Tokenizer& tokenizer_;
  text::Utf8Stream characters_;
  text::StopText stop_;
  const bool wants_logprobs_;
  const OnText& on_text_;
  bool finished_ = false;
};

// Shows how far the engine is with a prompt, and then with tokens that nobody sees yet.
class Waiting {
 public:
  Waiting(const engine::Engine& engine, const engine::Request& request, bool streams)
      : engine_(engine),
        prompt_tokens_(static_cast<int64_t>(request.prompt.size())),
        steps_before_(engine.stats().steps),
        streams_(streams) {}

  void show(const Completion& so_far) {
    if (so_far.tokens.empty())
      progress_.say(cat("reading the prompt: ", computed(), " of ", prompt_tokens_, " tokens"));
    else if (!streams_)
      progress_.say(cat(so_far.tokens.size(), " new tokens"));
  }
  void end() { progress_.clear(); }

 private:
  // A request that is alone has a whole chunk in each step.
  int64_t computed() const {
    return std::min(prompt_tokens_, (engine_.stats().steps - steps_before_) * engine_.options().prefill_chunk);
  }

  const engine::Engine& engine_;
  const int64_t prompt_tokens_, steps_before_;
  const bool streams_;
  Progress progress_;
};

bool step(engine::Engine& engine) {
  try {
    return engine.step();
  } catch (const cuda::DeviceError& error) {
    end_at_once(error);
  }
}

}  // namespace

double Completion::prefill_rate() const { return tokens.empty() ? 0 : (prompt_tokens - cached_tokens) / first_seconds; }

double Completion::decode_rate() const {
  return tokens.size() > 1 ? static_cast<double>(tokens.size() - 1) / (seconds - first_seconds) : 0;
}

Completion complete(Session& session, engine::Request request, const TextOptions& options, const Interrupt& interrupt,
                    const OnText& on_text) {
  Waiting waiting(session.engine, request, options.streams);
  const OnText show_text = [&](std::string_view text) {
    if (options.streams) waiting.end();
    on_text(text);
  };
  Hearer hearer(session.tokenizer, options, request.top_logprobs >= 0, show_text);
  const engine::RequestId id =
      session.engine.submit(std::move(request), [&](const engine::Output& output) { hearer.hear(output); });
  while (!hearer.finished()) {
    if (interrupt.happened() || hearer.found_stop()) session.engine.cancel(id);
    check(step(session.engine) || hearer.finished(), "the engine is idle although a request is not finished");
    if (!hearer.finished()) waiting.show(hearer.result);
  }
  const engine::Finish end = hearer.result.finish;
  check(end != engine::Finish::failed && end != engine::Finish::refused, hearer.error);
  return std::move(hearer.result);
}

std::string drafts_text(const engine::Speculated& drafts) {
  if (drafts.verifications == 0) return {};
  char text[128];
  std::snprintf(text, sizeof(text), "; %.2f tokens a verification, %.0f %% of drafts accepted", drafts.accept_length(),
                100 * drafts.accept_rate());
  return text;
}

std::string to_string(const Completion& completion) {
  char text[256];
  std::snprintf(text, sizeof(text),
                "%d prompt tokens (%d cached), %.0f tok/s; %zu new tokens, %.1f tok/s; first token after %.3f s",
                completion.prompt_tokens, completion.cached_tokens, completion.prefill_rate(), completion.tokens.size(),
                completion.decode_rate(), completion.first_seconds);
  return text + drafts_text(completion.speculated);
}

}  // namespace quire
