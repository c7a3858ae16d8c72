// Drafts of an EAGLE head on a GPU: eagle_drafts.h says which slots it computes and what it keeps. Features, states,
// keys and values stay in the GPU's memory; tokens and their chances come to the host through pinned words.
//
//   extend()   after every step, when its tokens were read: one graph, which is not waited for
//   first()    waits for it
//   draft()    all passes of a round: one graph, in which each pass leaves the next one's inputs; waits for it
//
// A request takes part in all passes of a round, or has its first draft alone: where its pages, or the context, end
// before those of the others.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "attn/metadata.h"
#include "attn/step.h"
#include "attn/step_upload.h"
#include "base/buffer.h"
#include "base/exec.h"
#include "base/graph.h"
#include "engine/batch.h"
#include "engine/draft_model.h"
#include "engine/draft_slots.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/step.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/draft_forward.h"
#include "model/draft_rows.h"
#include "model/eagle_head.h"

namespace quire::engine {

class GpuDrafts final : public DraftModel {
 public:
  // The runner computes the target's steps, with the head's features. All that is referred to outlives this.
  GpuDrafts(const model::EagleHead& head, const SchedulerLimits& limits, Dtype kv_type, const kv::RequestTable& table,
            Runner& runner, bool deterministic, Exec& exec);

  // After the runner's last step, and before its next one.
  void extend(const Batch& batch, const StepResults& results);

  bool has_slots(std::span<const PageId>) const override { return true; }  // it follows everybody
  void catch_up(std::span<const RequestRow>) override {}                   // and puts nothing off
  DraftToken first(RequestRow row) const override;
  int32_t draft(std::span<const DraftsWanted> wanted) override;

 private:
  struct Chain {
    const DraftsWanted* of;
    double path = 1;

    bool grows() const;
    void add(const DraftToken& draft);
  };
  void add_slots(const Batch& batch, const Share& share, const DraftSlots& of_share,
                 const attn::StepInputBuffers& inputs);
  void check_extend(attn::StepInputs inputs, int32_t requests, int32_t rows) const;
  int32_t state_before(const Share& share) const;
  bool has_room(const DraftsWanted& wanted, int32_t passes) const;
  void run_passes(std::span<const Chain* const> chains, int32_t passes);
  void read_first() const;
  model::PickedDraft wait_for(const model::PickedDraft& picked, uint32_t number) const;

  void capture();
  int32_t most_recorded_rows(int32_t requests) const;
  void record_extend(int32_t requests, int32_t rows);
  void record_passes(int32_t requests, int32_t passes);
  enum RowArray : int32_t { numbers, kept_from, kept_to, input_ids, positions, slots, state_rows, kRowArrays };
  int32_t* given(RowArray array) const { return of<int32_t>(given_rows_) + array * row_stride_; }
  int32_t* fetched(RowArray array) const { return of<int32_t>(fetched_rows_) + array * row_stride_; }
  void fetch_rows(int32_t rows);
  void enter(Rows<const float> from, const int32_t* rows_of, const attn::StepInputs& inputs, int64_t rows);
  void keep();
  void pick(Rows<const float> states, Rows<float> states_out, const attn::StepInputs& inputs, int32_t requests,
            const RequestRow* rows_out, model::PickedDraft* picked);
  attn::StepShape shape(attn::Mode mode, int32_t requests, int32_t rows) const;
  int32_t kept_row(PageId page) const { return running_ + 1 + page.value; }
  Rows<float> row_states() const { return {of<float>(row_states_), running_ + 1, width_, width_}; }
  Rows<float> kept() const { return {of<float>(kept_), running_ + 1 + pages_, width_, width_}; }
  template <class T>
  static T* of(const Buffer& buffer) {
    return reinterpret_cast<T*>(buffer.data());
  }

  const model::EagleHead& head_;
  const kv::RequestTable& table_;
  Runner& runner_;
  Exec& exec_;
  int32_t running_, pages_, most_passes_;
  PageSize page_size_;
  int64_t width_;
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepUpload extend_upload_, pass_upload_;
  model::DraftForward forward_;

  // What the host says of an extend's rows, [arrays, row_stride_]: numbers, of which the first is how many features are
  // kept, and those by row of the step and of the request table; then by row. Pinned, and the device's.
  int64_t row_stride_;
  Buffer given_rows_, fetched_rows_;

  // The device's.
  Buffer kept_;                         // [request rows, then pages, width] features; the first row is zeros
  Buffer row_states_;                   // [request rows, width] what the newest token's slot hands on
  Buffer pass_positions_, pass_slots_;  // [passes, requests]
  Buffer all_rows_, pass_tokens_;       // [1], [requests]
  // Pinned.
  Buffer first_picked_, passed_;  // [requests], [passes, requests]

  std::map<int32_t, GraphSet> extend_graphs_, pass_graphs_;  // by requests; then by rows, and by passes
  mutable std::vector<RequestRow> picked_rows_;              // whose first drafts are on their way
  uint32_t extend_number_ = 0;
  mutable std::vector<DraftToken> first_;  // [request rows]
};

}  // namespace quire::engine
