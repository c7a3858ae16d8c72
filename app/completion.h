// One request, run to its end on the calling thread while its text is handed on piece by piece, and progress is shown
// while there is none.
//
// Before   the engine's loop thread does not run; nothing else is stepping it.
// Errors   CheckError: what submit() refuses, and what made the request fail.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "interrupt.h"
#include "session.h"

namespace quire {

struct Completion {
  std::string text;                            // whole characters, up to a stop text; without special tokens
  std::vector<int32_t> tokens;                 // all that were generated, the one that ended the text included
  std::vector<engine::TokenLogprob> logprobs;  // of each token, where the request asks for them
  engine::Finish finish;                       // cancelled: interrupted
  int32_t prompt_tokens;
  int32_t cached_tokens;  // of the prompt, not computed again
  double first_seconds;   // until the first token
  double seconds;         // until the end
  engine::Speculated speculated;

  double prefill_rate() const;  // computed prompt tokens a second; 0 when no token came
  double decode_rate() const;   // tokens a second after the first; 0 when there are none
};

struct TextOptions {
  std::vector<std::string> stops;
  bool drop_first_space = false;  // an answer, not the continuation of a text
  bool streams = true;            // on_text shows the text, so that no progress need be shown once it comes
};

using OnText = std::function<void(std::string_view)>;
Completion complete(Session& session, engine::Request request, const TextOptions& options, const Interrupt& interrupt,
                    const OnText& on_text);

std::string to_string(const Completion& completion);        // the figures, in one line
std::string drafts_text(const engine::Speculated& drafts);  // what follows them; "" where nothing was drafted

}  // namespace quire
