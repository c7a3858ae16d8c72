// What the engine is asked and what it answers: token ids only, no text.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/sample.h"

namespace quire::engine {

using RequestId = uint64_t;  // never reused

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  ops::SamplingParams sampling = ops::SamplingParams();
  int32_t max_new_tokens = -1;         // -1: to the end of the context; 0: only fill the cache (and prompt logprobs)
  std::vector<int32_t> stop_ids = {};  // tokens that finish the request; the token itself is reported
  int32_t priority = 0;                // higher goes first; equals in order of arrival
  std::string salt = {};               // prompts share cached pages only within one salt
  int32_t top_logprobs = -1;           // -1: none; 0: of the drawn token; n: also of the n largest
};

enum class Finish : uint8_t {
  none,       // goes on
  stop,       // a stop id
  length,     // max_new_tokens or the end of the context
  cancelled,  // by cancel() or at shutdown
  failed      // the reason is in Output::error
};
const char* to_string(Finish finish);

// One event of a request: a new token, the end, or both.
struct Output {
  RequestId id = 0;
  int32_t token = -1;  // -1: none came with this event
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top = {};
  Finish finish = Finish::none;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, taken from the prefix tree
  int32_t generated = 0;      // tokens so far
  std::string error = {};
};

// Called on the engine's thread, in order for each request, the last time with finish != none. Must not block and must
// not throw.
using Listener = std::function<void(const Output&)>;

}  // namespace quire::engine
