// One choice of an answer: the engine's tokens become text, up to a stop text, in whole characters.
//
// What may still turn out to be the beginning of a stop text is held back; of several, the one that is complete first
// counts. Special tokens are left out if asked. Used by one thread at a time.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "serve/api_error.h"
#include "text/stop_text.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace quire::serve {

struct TextRules {
  std::vector<std::string> stops = {};
  bool skip_special = true;
  bool keep_stop = false;         // the stop text or token is part of the answer (SGLang's no_stop_trim)
  bool drop_first_space = false;  // an answer, not the continuation of a text
};

enum class EndReason : uint8_t {
  stop,
  length,
  cancelled,
  timeout,  // its time to run was over: what came so far is the answer. With an error, its time to wait was: 503
  refused,  // what the call asked for cannot be done, as turned out on the way
  failed
};

struct End {
  EndReason reason;
  std::variant<std::monostate, int32_t, std::string> matched = {};  // the token or the text that stopped it
  std::string error = {};  // of those that were refused, failed or waited too long
};

// What came since the last one.
struct Progress {
  std::string text = {};                                   // certain to belong to the answer
  std::vector<engine::TokenLogprob> tokens = {};           // ids always; logprobs where they were asked for
  std::vector<engine::TokenLogprob> prompt_logprobs = {};  // with the first one
  std::vector<float> embedding = {};
  std::optional<End> end = {};
  int32_t prompt_tokens = 0, cached_tokens = 0, generated = 0;  // so far
  engine::Speculated speculated = {};
};

class TextStream {
 public:
  TextStream(const text::Tokenizer& tokenizer, TextRules rules);
  // Adds to `progress`. After the end nothing more comes.
  void on_output(const engine::Output& output, Progress& progress);
  bool stopped() const { return stopped_; }  // by a stop text: the engine's request is to be cancelled

 private:
  bool is_shown(const engine::Output& output) const;
  void show(const std::string& characters, Progress& progress);
  void finish(const engine::Output& output, Progress& progress);

  const text::Tokenizer& tokenizer_;
  const TextRules rules_;
  text::Utf8Stream characters_;
  text::StopText stop_;
  bool stopped_ = false, ended_ = false;
};

// What an end has to be told as, instead of an answer; none: what was generated is the answer.
std::optional<ApiError> error_of(const End& end);

}  // namespace quire::serve
