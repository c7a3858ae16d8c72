// What the engine is asked and what it answers: token ids only, no text.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/token_mask.h"
#include "ops/logits.h"
#include "ops/sample.h"

namespace quire::engine {

using RequestId = uint64_t;  // never reused

// A text's meaning as one vector instead of its continuation: the last layer's normed rows, of the last token or their
// mean, scaled to length 1.
enum class Pooling : uint8_t { none, last, mean };

// A level of priority is worth so many steps of waiting: who has waited long enough goes before those of higher
// priority that came later, so nobody starves.
inline constexpr int32_t kMostPriority = 100, kStepsOfALevel = 512;

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  ops::SamplingParams sampling = ops::SamplingParams();
  int32_t max_new_tokens = -1;            // -1: to the end of the context; 0: only fill the cache (and prompt logprobs)
  std::vector<int32_t> stop_ids = {};     // tokens that finish the request; the token itself is reported
  int32_t priority = 0;                   // within kMostPriority; higher goes first; equals in order of arrival
  std::string salt = {};                  // prompts share cached pages only within one salt
  int32_t min_new_tokens = 0;             // stop ids are not drawn before
  int32_t top_logprobs = -1;              // -1: none; 0: of the drawn token; n: also of the n largest
  std::vector<int32_t> logprob_ids = {};  // where there are logprobs: also of these tokens
  int32_t prompt_logprobs_from = -1;      // -1: none; else of the prompt's tokens from this position on, with
                                          // top_logprobs and logprob_ids as for drawn ones
  std::shared_ptr<TokenMask> mask = {};   // null: any token
  Pooling pooling = Pooling::none;        // else max_new_tokens is 0
  bool speculative = true;                // may be drafted for, where the engine does so (drafter.h)
};

// Whether a draw depends on the tokens before it: on more than the logits have of them.
inline bool penalises(const ops::SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

// How far below the largest logit others matter to its draws (ops/logits.h). What changes logits may leave unlikely
// tokens alone, and a higher temperature makes them likelier.
inline float logit_reach(const Request& request) {
  const ops::SamplingParams& params = request.sampling;
  const bool as_they_are =
      !request.mask && request.min_new_tokens == 0 && params.logit_bias.empty() && !penalises(params);
  return as_they_are ? ops::kUsualReach * std::max(1.0f, params.temperature) : ops::kWholeReach;
}

inline bool stops_at(const Request& request, int32_t token) {
  return std::find(request.stop_ids.begin(), request.stop_ids.end(), token) != request.stop_ids.end();
}

// How likely a token was, and others in its place.
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;                                   // of the first token of a text: 0, nothing stood before it
  std::vector<std::pair<int32_t, float>> top = {};     // descending
  std::vector<std::pair<int32_t, float>> wanted = {};  // of Request::logprob_ids, in their order
};

enum class Finish : uint8_t {
  none,       // goes on
  stop,       // a stop id
  length,     // max_new_tokens or the end of the context
  cancelled,  // by cancel() or at shutdown
  refused,    // what it asked for cannot be done, as turned out on the way: the reason is in Output::error
  failed      // the reason is in Output::error
};
const char* to_string(Finish finish);

// What came of drafts: steps that verified some, how many those were, and how many of them came true. Each such step
// gives one token more than drafts came true.
struct Speculated {
  static constexpr int32_t kMostCorrect = 63;

  int64_t verifications = 0, drafts = 0, correct = 0;
  std::array<int64_t, kMostCorrect + 1> by_correct = {};  // verifications of which so many drafts came true

  void add(int32_t verified, int32_t came) {
    ++verifications;
    drafts += verified;
    correct += came;
    ++by_correct[std::min(came, kMostCorrect)];
  }
  void add(const Speculated& other) {
    verifications += other.verifications;
    drafts += other.drafts;
    correct += other.correct;
    for (size_t i = 0; i < by_correct.size(); ++i) by_correct[i] += other.by_correct[i];
  }
  double accept_length() const {
    return verifications ? 1 + static_cast<double>(correct) / static_cast<double>(verifications) : 0;
  }
  double accept_rate() const { return drafts ? static_cast<double>(correct) / static_cast<double>(drafts) : 0; }
};

// One event of a request: a new token, the end, or both.
struct Output {
  RequestId id = 0;
  int32_t token = -1;                              // -1: none came with this event
  TokenLogprob logprobs = {};                      // of the token, where they were asked for
  std::vector<TokenLogprob> prompt_logprobs = {};  // with the request's first event
  std::vector<float> embedding = {};               // with the last event of a request that is pooled
  Finish finish = Finish::none;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, taken from the prefix tree
  int32_t generated = 0;      // tokens so far
  double queued_seconds = 0;  // before it ran for the first time
  Speculated speculated = {};
  std::string error = {};
};

// Called on the engine's thread, in order for each request, the last time with finish != none. Must not block and must
// not throw.
using Listener = std::function<void(const Output&)>;

}  // namespace quire::engine
