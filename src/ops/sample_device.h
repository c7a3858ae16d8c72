// Sampling on the GPU, by the definition of sample.h: for equal logits the same tokens as ops::Sampler, whatever the
// parameters. One kernel draws or scores all rows of a step, and what it has to be told and says goes through pinned
// memory, so a step costs no copy:
//
//   host    begin(number), then draw(), score() or skip() for each row of logits, in order: into the step's slot
//   stream  ... the step's inputs, which find the newest tokens in drawn_tokens(); the model ...
//           launch()   last in the step: reads the slot; writes drawn_tokens(), tokens_of_step(), counts of penalties,
//                      and into the slot its results, each with the step's number
//   host    finished(number) or wait(number), then result(number, i) for each row
//
// A step names its slot by its number, which the kernel reads when it runs: the launch may be recorded into a graph,
// padded to more rows than are live. `steps` slots: the results of step n have to be read before begin(n + steps).
//
// Penalties count the tokens of a text in a slot of the device's memory. recount() fills it from a text, once when the
// request starts or starts again; every draw with that slot adds its token.
//
// Logprobs differ from the CPU's by one unit in the last place at most. A row that wants more of them than the results
// have room for (wants_logits) is scored on the host from its logits, which result() copies: in such a step results are
// read before another step is launched.
//
// Errors   a row that cannot be sampled, as in sample.h, fails alone: its result() throws CheckError with the words of
//          the CPU's sampler, its newest token stays and nothing is counted. Parameters outside their domain throw
//          CheckError from draw() and score(), before any work.
//
// Not for several threads at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/device_wait.h"
#include "base/drawn_tokens.h"
#include "base/exec.h"
#include "base/tensor.h"
#include "base/types.h"
#include "ops/sample.h"

namespace quire::ops {

struct SampleOutcome;
struct SampleRecord;

inline constexpr int32_t kMostTopLogprobs = 128;  // of a row, in the results
inline constexpr int32_t kNoPenaltySlot = -1;

struct DeviceSamplerLimits {
  int32_t vocabulary;
  int32_t rows;               // of logits in a step, at most
  int32_t request_rows;       // tokens are kept for so many
  int32_t penalty_slots = 0;  // 4 bytes a token of the vocabulary each
  int32_t text = 0;           // tokens in the longest text that is counted
  int32_t steps = 3;          // whose slots there are
};

class DeviceSampler {
 public:
  DeviceSampler(const DeviceSamplerLimits& limits, Exec& exec);  // exec has a stream and outlives it
  ~DeviceSampler();
  DeviceSampler(const DeviceSampler&) = delete;
  DeviceSampler& operator=(const DeviceSampler&) = delete;

  // --- before a step is launched

  void begin(uint32_t number);  // of the step, ascending by one, the first 1; no rows so far
  // Each of these is one more row. SampleRow's logits, prompt and generated are not looked at: the text's tokens are
  // those of the penalty slot, which a row with penalties needs.
  void draw(const SampleRow& row, RequestRow request_row, int32_t penalty_slot = kNoPenaltySlot);
  void score(const SampleRow& row, int32_t token);
  void skip();  // nothing is drawn, the result is empty
  // The step that was begun has a row whose logits result() will copy.
  bool wants_logits() const;

  // The slot's counts become those of this text, before what is launched from now on and after what was.
  void recount(int32_t penalty_slot, std::span<const int32_t> prompt, std::span<const int32_t> generated);

  // --- in the stream, or recorded

  // logits: of so many rows at most, always at the same address; those behind the rows that were given are not read.
  // number: the device's or pinned, read when it runs: the step that was begun. live: the device's, read when it runs:
  // how many rows were given; null: padding is found by its records, which takes longer.
  void launch(Rows<const float> logits, const uint32_t* number, const int32_t* live = nullptr);

  // --- afterwards

  bool finished(uint32_t number) const;
  // Throws what a fault of the device left behind, and DeviceError after so long: of its steps, or of what they wait
  // for.
  void wait(uint32_t number, std::chrono::milliseconds patience = quire::cuda::kPatience) const;
  double seconds(uint32_t number) const;  // of the device, from its inputs to the last token
  // From the last token of the step before to where this one's time begins: nothing but inputs is computed there.
  double idle_seconds(uint32_t number) const;
  Sampled result(uint32_t number, int32_t row);  // of a finished step; token -1: skipped

  DrawnTokens drawn_tokens() const;
  // [limits' rows] the device's, for who comes behind the step: what each of its rows drew; -1: nothing.
  const int32_t* tokens_of_step() const;

 private:
  struct Slot;
  Slot& slot(uint32_t number) const;
  SampleRecord& record(uint32_t number, int32_t row) const;
  SampleOutcome& outcome(uint32_t number, int32_t row) const;
  SampleRecord& add_row(const SampleRow& row);
  Sampled score_on_host(int32_t row, int32_t token, int32_t top_logprobs, std::span<const int32_t> ids);

  DeviceSamplerLimits limits_;
  Exec& exec_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire::ops
