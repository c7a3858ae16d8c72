// Drafts of an EAGLE head on a GPU: eagle_drafts.h says which slots it computes and what it keeps. Features, states,
// keys and values stay in the GPU's memory; tokens and their chances come to the host through pinned words.
//
//   host     launch, follow()      read tokens, settle   first()  draft()  plan | launch, follow() ...
//   device     [ verification, draws ][ walk, extend ][ passes ........ ]          [ verification, draws ][ walk ...
//                                       finds which drafts came, and the newest token (model/draft_rows.h)
//
//   follow()   behind every step's launch: a graph of the slots that the step gives those that are followed, and one of
//              the passes behind them, each of which leaves the next one's inputs. The host is asked nothing and waits
//              for neither. Where nobody is followed nothing is launched, and steps may overlap.
//   first()    waits for the slots
//   draft()    waits for the passes
//
// How many drafts came, the host finds when it reads the step, by the same rule as the device: the two differ only for
// requests that end with the step (draft_rows.h). How many passes there are the batch says, since what pays is planned
// (DraftBudget::passes) and pages are needed: a request takes part in all of them, or has its first draft alone
// (Share::passes).
//
// With topk above 1 drafts are trees: what a slot says are its topk likeliest tokens, a pass has topk branches of each
// request, in slots past the pool's, and the device chooses which are followed, by what the head says of them alone
// (draft_branches.h). The host has all that was said, and makes the tree of it by what it knows of the head
// (growing_tree.h). After the walk through such a tree the target's keys and values are moved to where the text has
// them, in the same graph as the slots.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/buffer.h"
#include "base/exec.h"
#include "base/graph.h"
#include "engine/batch.h"
#include "engine/draft_model.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/draft_forward.h"
#include "model/draft_rows.h"
#include "model/eagle_head.h"

namespace quire::engine {

class GpuDrafts final : public DraftModel {
 public:
  // The runner computes the target's steps, with the head's features; drawn, the device's: what rows of a step's logits
  // drew (DeviceSampler::tokens_of_step). All that is referred to outlives this.
  GpuDrafts(const model::EagleHead& head, const SchedulerLimits& limits, Dtype kv_type, const kv::RequestTable& table,
            const Runner& runner, const int32_t* drawn, bool deterministic, Exec& exec);

  // Behind the runner's newest step, draws included, on the stream, and before its next one. If it throws, that step's
  // requests have no drafts.
  void follow(const Batch& batch);

  bool has_slots(std::span<const PageId> pages) const override;
  void catch_up(std::span<const RequestRow>) override {}  // it puts nothing off
  DraftToken first(RequestRow row) const override { return first_of(row).front(); }
  int32_t draft(std::span<const DraftsWanted> wanted) override;

  // For tests, which fill what nobody may read: the keys and values, those past the pool's pages included.
  const kv::KvStore& store() const { return store_; }

 private:
  void launch(const Batch& batch);
  void begin_step();
  void mark_pages(const Share& share, int32_t end, bool whole);
  int32_t end_of_full_pages(const Share& share) const;
  void add_share(const Batch& batch, const Share& share);
  int32_t add_tree(const Batch& batch, const Share& share);
  void launch_extend();
  int32_t state_before(const Share& share) const;
  std::span<const DraftToken> first_of(RequestRow row) const;
  void read_first() const;
  DraftToken wait_for(const model::PickedDraft& picked) const;
  void draft_chain(const DraftsWanted& wanted, int32_t at) const;
  void draft_tree(const DraftsWanted& wanted, int32_t at) const;

  void capture();
  int32_t most_recorded_rows(int32_t requests) const;
  void record_extend(int32_t requests, int32_t rows);
  void record_passes(int32_t requests, int32_t passes);
  void walk(int32_t requests);
  void enter(int64_t rows);
  void keep();
  void keep_path(int32_t requests);
  void lay_out(int32_t requests, int32_t passes);
  void pick_first(int32_t requests);
  void pick_next(const attn::StepInputs& inputs, int32_t requests, int32_t pass);
  void pick_branches(const attn::StepShape& shape, const attn::StepInputs& inputs, int32_t pass);
  void follow_best(const attn::StepShape& shape, const attn::StepInputs& inputs, int32_t pass);
  attn::StepShape shape(attn::Mode mode, int32_t requests, int32_t rows) const;
  int32_t kept_row(PageId page) const { return running_ + 1 + page.value; }
  model::WalkedStep& step() const { return *of<model::WalkedStep>(walked_step_); }
  Rows<float> kept() const { return {of<float>(kept_), running_ + 1 + pages_, width_, width_}; }
  template <class T>
  static T* of(const Buffer& buffer) {
    return reinterpret_cast<T*>(buffer.data());
  }

  const model::EagleHead& head_;
  const kv::RequestTable& table_;
  const Runner& runner_;
  const int32_t* drawn_;
  Exec& exec_;
  int32_t running_, pages_, topk_, steps_, most_passes_;
  int32_t context_, most_drafts_, draft_rows_;  // the last two: of a request, and of a step
  PageSize page_size_;
  int64_t width_;
  kv::KvStore store_;
  attn::MetadataArena arena_;
  model::DraftForward forward_;

  // Pinned: what the host says of the step.
  Buffer walked_step_, walked_shares_, follows_;  // [1], [requests], [drawn rows]
  // The device's.
  attn::StepInputBuffers inputs_;       // which the walk fills; of passes `passing_` requests live
  Buffer passing_, pass_rows_;          // [1] each; the second: branches of all that pass
  Buffer state_rows_, kept_rows_;       // [rows], [requests]
  Buffer kept_;                         // [request rows, then pages, width] features; the first row is zeros
  Buffer paths_, path_rows_;            // [requests], [requests, 1 + drafts]: that were walked
  Buffer pass_positions_, pass_slots_;  // [passes, requests, topk]
  Buffer all_rows_;                     // [1]
  Buffer pass_tokens_, pass_paths_;     // [requests, topk] that a pass begins with, and their chances
  Buffer said_, said_hits_;             // [requests, topk, topk] what it says behind branches
  Buffer parents_;                      // [requests, topk]
  // Pinned: what the head says, and the branches that were followed.
  Buffer first_picked_, passed_;  // [requests, topk], [passes, requests, topk, topk]
  Buffer followed_;               // [passes, requests, topk]

  std::map<int32_t, GraphSet> extend_graphs_;  // by requests, then by rows
  std::map<int32_t, GraphSet> pass_graphs_;    // by passes, then by requests
  std::vector<char> whole_;                    // [pages] that have slots for all that followed requests put there
  uint32_t number_ = 0;                        // of the step
  int32_t passes_ = 0;                         // behind it
  int32_t rows_ = 0;                           // of the step that they follow
  bool is_unread_ = false;                     // what the host says may not have been, and nothing tells when
  mutable std::vector<RequestRow> unread_;     // whose first drafts are on their way, in order
  mutable std::vector<DraftToken> first_;      // [request rows, topk]
  std::vector<int32_t> passed_at_;             // [request rows] in passed_; -1: there were no passes for it
};

}  // namespace quire::engine
