// Steps on a GPU: launched, and read when they are asked for. The next step's graph is on the stream before the host
// has read the tokens of the last, which the GPU finds by itself (ops/sample_device.h).
//
//   a step of one token each    one graph: the table's changes, tokens, metadata, all layers, sampling
//   with masks                  the same without sampling; meanwhile the host reads the step before and computes masks;
//                               sampling
//   with drafts                 the same, by the rows of all and of each
//   with chunks of prompts      the same, by the rows of all; operation by operation where they are more than 1024, unless
//                               one prompt fills the step
//
// All rows are drawn and scored on the GPU, those of drafts too, each as if all drafts before it had come: which of
// them count is found out when they are read (drafter.h). With a head what it computes of the step, and the drafts for
// the next, follow on the stream before that (gpu_drafts.h). Rows that are pooled come to the host by a copy. A row
// that sits out, or whose mask throws, is skipped.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "engine/gpu_drafts.h"
#include "engine/runner.h"
#include "engine/step_device.h"
#include "ops/sample_device.h"

namespace quire::engine {

class GpuSteps : public StepDevice {
 public:
  explicit GpuSteps(const StepDeviceParts& parts);
  void launch(Step& step) override;
  void draw(Step& step) override;
  void finish(Step& step) override;
  DraftModel* draft_model() override { return drafts_ ? &*drafts_ : nullptr; }

 private:
  struct Launched {
    Step* step;
    uint32_t number;
    bool wants_logits;  // to be read before the next launch
    bool is_behind;     // another step, not read yet
  };
  struct Counted {  // what the penalties' slot of a request row holds
    RequestId id = 0;
    int64_t tokens = 0;
  };
  template <class Work>
  void or_abandon(const Work& work);
  void make_room(uint32_t number);
  void read_oldest();
  void copy_pooled(const Batch& batch, const Rows<const float>& rows);
  void tell_sampler(Step& step, uint32_t number);
  void draw(const Batch& batch, const Share& share, int32_t ahead);
  int32_t penalty_slot(const Batch& batch, const Share& share);
  void read_rows(const Launched& launched);
  void read_drawn(const Launched& launched, const Share& share);
  bool read_row(uint32_t number, int32_t row, AheadMask* mask, RowResult& result);

  int32_t vocabulary_;
  Exec& exec_;
  ops::DeviceSampler sampler_;
  Runner runner_;
  std::optional<GpuDrafts> drafts_;  // with a head
  Buffer pooled_;                    // pinned [kept rows, width], of one step at a time
  int64_t width_;
  Launched newest_ = {};                // that was launched, and draws next
  std::deque<Launched> launched_;       // that draw, and are not read yet, oldest first
  std::vector<Counted> counted_;        // [request rows]
  std::vector<uint32_t> mask_scratch_;  // of allowed_tokens()
};

}  // namespace quire::engine
