// Drafts of an EAGLE head (model/eagle_head.h) on a CPU: the head's keys and values beside the target's, in the same
// pages and slots.
//
//   target's rows of a step    p    p+1  p+2                 p+2 was a draft that came; e was drawn from its row
//   tokens                     a    b    c    e
//   features                   g_p  g_p+1 g_p+2
//   slots of the head          .    g_p|b g_p+1|c g_p+2|e     computed after the walk; that of a by the step before
//   drafts                                    f, h, ...      from slot of e: f; from f with the state of e: h
//
// extend() comes after every step, with the target's features of the requests that are followed: for the slots of all
// tokens that the step put into pages, accepted drafts and chunks of prompts alike, and for that of the token that was
// drawn. Slots of prompts are computed at once; those of tokens that were drawn are put off, since several take hardly
// longer than one, until drafts are wanted (catch_up) or a page is full. So what drafts left there is written over
// before it is read, and a full page is whole for the head too, whoever comes to share it. The newest token's slot is
// always put off: what it says is the first draft. The first slot of a chunk wants features of the token before it:
// these are kept for each request, and for the last slot of each page, where a request may begin that found a prefix.
// Where a page of a prefix has no slots, a request computes it again from its first token on.
//
// With topk above 1 drafts are trees: each pass follows topk branches of every request (growing_tree.h), whose keys and
// values lie in slots of the store past the pool's: nobody else has these, and drafting takes no page.
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
#include "engine/draft_slots.h"
#include "engine/growing_tree.h"
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

  // After the step: features [rows of the batch, width]; none where no share is followed.
  void extend(const Batch& batch, const StepResults& results, Rows<const float> features);

  bool has_slots(std::span<const PageId> pages) const override;
  void catch_up(std::span<const RequestRow> rows) override;
  DraftToken first(RequestRow row) const override { return first_of(row).front(); }
  int32_t draft(std::span<const DraftsWanted> wanted) override;

  // For tests, which fill what nobody may read: the keys and values, those past the pool's pages included, and the
  // features of a page's last token.
  const kv::KvStore& store() const { return store_; }
  std::span<float> features_of(PageId page) const {
    return {row_of(page_features_, page.value), static_cast<size_t>(width_)};
  }

 private:
  struct GrowingBranches {
    const DraftsWanted* of;
    GrowingTree tree;
  };
  // Slots of a request whose turn has not come, one after the other.
  struct PutOff {
    int32_t begin = 0;
    std::vector<int32_t> tokens = {};
    std::vector<float> states = {};  // [tokens, width]

    int32_t end() const { return begin + static_cast<int32_t>(tokens.size()); }
  };
  int32_t room_of(RequestRow row) const;
  bool fills_page(const Share& share, const DraftSlots& slots) const;
  void add_slots(const Batch& batch, const Share& share, const DraftSlots& slots, Rows<const float> features);
  void put_off(RequestRow row, int32_t slot, int32_t token, const float* state);
  void add_put_off(RequestRow row, int32_t end);
  void make_room(int32_t rows);
  void begin_pages(const Share& share);
  void keep_features(const Share& share, const DraftSlots& slots, Rows<const float> features);
  static int32_t row_at(const Share& share, const DraftSlots& slots, int32_t position);
  const float* features_before(const Share& share) const;
  void begin_step();
  void add_row(TokenSlot slot, int32_t position, int32_t token, const float* state);
  void want_last_row(RequestRow row);
  void end_request(RequestRow row, int32_t end, int32_t rows);
  int32_t draft_chains(std::span<const DraftsWanted> wanted);
  int32_t draft_trees(std::span<const DraftsWanted> wanted);
  void begin_trees(std::span<const GrowingBranches> trees);
  void add_branches(std::span<const GrowingBranches> trees, int32_t pass);
  TokenSlot branch_slot(int64_t tree, int32_t branch, int32_t pass) const;
  void run_extend();
  void run(attn::Mode mode, int32_t draft_step = 0);
  void guess(int64_t row, int thread);
  std::span<const DraftToken> first_of(RequestRow row) const {
    return {first_.data() + int64_t{row.value} * topk_, static_cast<size_t>(topk_)};
  }
  std::span<const DraftToken> guesses_of(int64_t wanted, int64_t rows) const {
    return {guesses_.data() + wanted * topk_, static_cast<size_t>(rows * topk_)};
  }
  float* row_of(const Buffer& rows, int32_t index) const;

  const kv::RequestTable& table_;
  Exec& exec_;
  PageSize page_size_;
  int32_t width_;
  int32_t topk_, steps_;                // branches; most drafts on one
  kv::TableView view_;                  // of the table, whose ids are below the store's pages
  std::span<const int32_t> token_ids_;  // of the draft vocabulary
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  model::DraftForward forward_;
  ops::Sampler sampler_;             // of the draft vocabulary
  Buffer page_features_;             // [pages, width] of each page's last slot
  std::vector<bool> whole_;          // [pages] all slots of the page are computed, and its features kept
  Buffer row_features_;              // [request rows, width] of the last token in pages
  Buffer row_states_;                // [request rows, width] what the newest token's slot hands on
  std::vector<PageId> filled_;       // by the step that is being computed
  std::vector<PutOff> put_off_;      // [request rows]
  std::vector<DraftToken> first_;    // [request rows, topk] what the newest token's slot says comes next
  std::vector<RequestRow> wanted_;   // of the step that is being computed: whose its wanted rows are
  std::vector<DraftToken> guesses_;  // [wanted, topk] and what they say
  std::vector<int32_t> parents_;     // [trees, topk] scratch
};

}  // namespace quire::engine
