// What a sampling kernel is told and what it says (sample_device.h): plain records at fixed addresses in pinned memory,
// a slot of them for each step in a ring. The host computes what is the same for a whole row, so that the kernel need
// not. A record is one cache line, read by one block alone: lines that several read come over the bus several times.
#pragma once
#include <cstdint>
#include <type_traits>

#include "base/drawn_tokens.h"
#include "base/exec.h"

namespace quire::ops {

enum class SampleTask : int32_t { skip, draw, score };

struct LogitBias;
struct TopLogprob;

// One row of logits.
struct alignas(128) SampleRecord {
  double per_logit = 0;       // log2(e) / temperature; 0: the largest logit is taken
  uint64_t random = 0;        // the bits of (seed, position)
  uint64_t least_weight = 0;  // min-p's
  float top_p = 1;
  int32_t top_k = 0;  // 0: all
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  SampleTask task = SampleTask::skip;
  int32_t token = -1;              // to be scored
  int32_t request_row = -1;        // whose newest token is drawn
  int32_t penalty_slot = -1;       // -1: no penalties
  uint32_t number = 0;             // of the step
  const uint32_t* mask = nullptr;  // [ceil(vocabulary / 32)] bit set: allowed; null: all tokens are
  const LogitBias* bias = nullptr;
  const int32_t* ids = nullptr;                           // whose logprobs are wanted
  TopLogprob* top = nullptr;                              // [top_count] for the kernel to write
  float* wanted = nullptr;                                // [ids_count] likewise
  int32_t bias_count = 0, top_count = -1, ids_count = 0;  // top -1: no logprobs at all
};
static_assert(sizeof(SampleRecord) == 128 && std::is_trivially_copyable_v<SampleRecord>);

struct LogitBias {  // a row's are in the order of tokens, those of one token in the order they are added
  int32_t token;
  float bias;
};

enum class SampleStatus : int32_t { fine, broken_logits, no_logits, no_token };

// What the kernel says comes word by word, each with the step's number beside it: whoever sees that sees the word.
struct alignas(8) NumberedWord {
  uint32_t value, number;
};
struct alignas(64) SampleOutcome {
  NumberedWord token;
  NumberedWord logprob;      // the bits of a float
  NumberedWord status;       // and 4 * how many of the top there are: fewer than wanted where fewer are above -inf
  NumberedWord nanoseconds;  // since the step began
  NumberedWord idle;         // of the first row: nanoseconds before that, since the step before had its last token
};

struct TopLogprob {
  int32_t token;
  float logprob;
};

struct SampleArgs {
  const float* logits;  // [rows, stride] the device's
  int64_t stride;
  int32_t rows;  // recorded
  int32_t vocabulary;
  const int32_t* live;     // [1] the device's: rows behind are not looked at; null: the records say which are skipped
  const uint32_t* number;  // [1] of the step; modulo `slots` it is the slot
  uint32_t slots;
  int32_t most_rows;            // of a slot
  const SampleRecord* records;  // [slots, most_rows] pinned
  SampleOutcome* outcomes;      // [slots, most_rows] pinned
  int32_t* token_of_row;        // [request_rows] the device's, as all below
  int32_t* token_of_step;       // [most_rows] what a row drew; -1: nothing
  uint32_t* counts;             // [penalty slots, vocabulary] kInPrompt, and how often it was generated
  StepClock* clock;
};
inline constexpr uint32_t kInPrompt = uint32_t{1} << 31;

struct RecountArgs {
  const int32_t* text;  // pinned: the prompt, then what was generated
  int32_t prompt, generated;
  uint32_t* counts;  // [vocabulary]
  int32_t vocabulary;
  uint32_t* recounted;  // pinned: `number` when the text has been read
  uint32_t number;
};

namespace cuda {
int32_t most_vocabulary();  // that sample_rows can do
void sample_rows(const SampleArgs& args, Exec& exec);
void recount(const RecountArgs& args, Exec& exec);
}  // namespace cuda

}  // namespace quire::ops
