// Drafts of an EAGLE head (model/eagle_head.h) on a CPU: the head's keys and values beside the target's, in the same
// pages and slots.
//
//   target's rows of a step    p    p+1  p+2                 p+2 was a draft that came; e was drawn from its row
//   tokens                     a    b    c    e
//   features                   g_p  g_p+1 g_p+2
//   slots of the head          .    g_p|b g_p+1|c g_p+2|e     computed after the walk; that of a by the step before
//   drafts                                    f, h, ...      from slot of e: f; from f with the state of e: h
//
// extend() follows every step: it computes the slots of all tokens that the step put into pages, accepted drafts and
// chunks of prompts alike, from the target's features, and the slot of the token that was drawn. So what drafts left
// there is written over, and a page that is whole is so for the head too, whoever comes to share it. The first slot of
// a chunk wants features of the token before it: these are kept for each request, and for the last slot of each page,
// where a request may begin that found a prefix.
//
// Not for a step that is computed late: extend() reads its results.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/buffer.h"
#include "base/exec.h"
#include "base/tensor.h"
#include "engine/batch.h"
#include "engine/draft_model.h"
#include "engine/scheduler.h"
#include "engine/step.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/draft_forward.h"
#include "model/eagle_head.h"
#include "ops/sample.h"

namespace quire::engine {

class EagleDrafts final : public DraftModel {
 public:
  // All that is referred to outlives it.
  EagleDrafts(const model::EagleHead& head, const SchedulerLimits& limits, Dtype kv_type, const kv::RequestTable& table,
              Exec& exec);

  // After the step: features [rows of the batch, width].
  void extend(const Batch& batch, const StepResults& results, Rows<const float> features);

  DraftToken first(RequestRow row) const override { return first_[row.value]; }
  int32_t draft(std::span<const DraftsWanted> wanted) override;

  // For tests, which fill what nobody may read: the keys and values, and the features of a page's last token.
  const kv::KvStore& store() const { return store_; }
  std::span<float> features_of(PageId page) const {
    return {row_of(page_features_, page.value), static_cast<size_t>(width_)};
  }

 private:
  struct Slots {  // of a share, that are computed: from `begin` to `end`; none where they are equal
    int32_t begin, end;
    int32_t committed;    // tokens that are in pages after the step
    int32_t newest = -1;  // the token that was drawn last, at position `committed`; -1: none was
  };
  Slots slots_of(const Share& share, const StepResults& results) const;
  void add_slots(const Batch& batch, const Share& share, const Slots& slots, Rows<const float> features);
  void keep_features(const Share& share, const Slots& slots, Rows<const float> features);
  const float* features_before(const Share& share) const;
  void begin_step();
  void add_row(RequestRow row, int32_t position, int32_t token, const float* state);
  void end_request(RequestRow row, int32_t end, int32_t rows, bool wants_draft);
  void run(attn::Mode mode);
  DraftToken guess(int64_t row, int thread) const;
  float* row_of(const Buffer& rows, int32_t index) const;

  const kv::RequestTable& table_;
  Exec& exec_;
  PageSize page_size_;
  int32_t width_;
  std::span<const int32_t> token_ids_;  // of the draft vocabulary
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  model::DraftForward forward_;
  ops::Sampler sampler_;             // of the draft vocabulary
  Buffer page_features_;             // [pages, width] of each page's last slot
  Buffer row_features_;              // [request rows, width] of the last token in pages
  Buffer row_states_;                // [request rows, width] what the newest token's slot hands on
  std::vector<DraftToken> first_;    // [request rows] and what it says comes next
  std::vector<RequestRow> wanted_;   // of the step that is being computed: whose its wanted rows are
  std::vector<DraftToken> guesses_;  // and what they say
};

}  // namespace quire::engine
