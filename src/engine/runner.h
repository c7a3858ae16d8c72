// A planned step becomes logits and last rows: owns the keys and values, the step's inputs, attention's metadata and
// the model's buffers.
//
// Steps in which every request brings one token replay a recorded graph of the smallest padded size that fits, and of
// the shortest context that does, where attention to short sequences is chosen otherwise; on a GPU so do steps in which
// none brings more than a token and its drafts, which may branch (draft_tree.h): these are verified as trees. Steps
// with chunks of prompts run eagerly, on a GPU only those of many rows that no prompt fills alone: it would be done
// with few sooner than they are launched one by one. So do a CPU's with trees. A row's results are the same either way.
//
// A GPU reads the request table by a mirror of its own (kv/page_table_journal.h), and its outputs are in its memory
// when its stream has come so far. With a sampler the step also looks up tokens that the host does not know yet, and
// draws.
//
// Before   the batch's pages are reserved in the request table that the runner was made with; without a sampler all its
//          tokens are known.
// Memory   on the host address space when it is made, resident as tokens come. A step allocates nothing.
// Errors   a step that does not fit the limits throws CheckError before any work.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "attn/metadata.h"
#include "attn/step.h"
#include "attn/step_upload.h"
#include "base/exec.h"
#include "base/graph.h"
#include "base/tensor.h"
#include "engine/batch.h"
#include "engine/scheduler.h"
#include "engine/step.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/forward.h"
#include "model/model.h"
#include "ops/sample_device.h"

namespace quire::engine {

// Steps with prompts are padded to multiples of this where they are recorded: a part of a tile takes as long as all.
inline constexpr int32_t kGpuRowTile = 128;

// That steps of so many requests at most are recorded for.
std::vector<int> padded_sizes(int32_t most, Device device);

class Runner {
 public:
  // The model, the table, exec, the sampler, which a GPU has, and the projection of features, outlive the runner.
  Runner(const model::Model& model, const SchedulerLimits& limits, Dtype kv_type, kv::RequestTable& table, Exec& exec,
         ops::DeviceSampler* sampler = nullptr, bool deterministic = false,
         const model::FeatureProjection* features = nullptr);

  // Valid until the next run.
  struct Outputs {
    Rows<const float> logits;    // of the batch's drawn rows, then of its scored ones
    Rows<const float> pooled;    // the batch's pooled rows, after the last layer and its norm
    Rows<const float> features;  // of all rows of a batch that is followed; of another they mean nothing
  };
  Outputs run(const Batch& batch) {
    prepare(batch);
    return compute(batch, Part::whole);
  }

  // The same in two parts, for who has something to do in between, and with a sampler in three: `forward` draws
  // nothing, sample() does so later. prepare() gives the step's number.
  enum class Part : uint8_t { forward, whole };
  uint32_t prepare(const Batch& batch);
  Outputs compute(const Batch& batch, Part part);
  void sample(const Batch& batch);
  void abandon();  // what was prepared, if it cannot be computed

  // For who computes behind a GPU's step what follows from it: its inputs and features, until the next one, and the
  // request table as that step has it.
  attn::StepInputs inputs() const { return upload_.inputs(); }
  Rows<const float> features() const { return forward_.features(); }
  const kv::KvStore& store() const { return store_; }
  kv::TableView table_view() const { return mirror_ ? mirror_->view() : table_.view(); }

  // Of a CPU, after a step of which drafts branched was drawn from, before its pages change: keys and values of the
  // path that each walk took come to lie where the text has them.
  void keep_path(const Batch& batch, const StepResults& results);

 private:
  void sample(int32_t most_rows);
  void capture(int32_t prefill_chunk);
  void record(const attn::StepShape& shape, Part part);
  void apply_journal(const attn::StepInputs& sent);
  void send_changes_ahead(const attn::StepInputBuffers& inputs);
  const attn::StepInputBuffers& next_inputs();
  bool take_changes(const attn::StepInputBuffers& inputs);
  void check_room(const Batch& batch) const;
  void fill(const Batch& batch, const attn::StepInputBuffers& inputs) const;
  static void fill_reach(const Batch& batch, std::span<float> reach);
  void fill_tree(const Batch& batch, const Share& share, const attn::StepInputBuffers& inputs) const;
  attn::StepShape shape(const Batch& batch) const;
  attn::StepShape decode_shape(int32_t sequences, int32_t context) const;
  attn::StepShape extend_shape(int32_t sequences, int32_t rows) const;
  attn::StepShape verify_shape(int32_t sequences, int32_t rows, int32_t context) const;
  attn::StepShape tree_shape(int32_t sequences, int32_t rows, int32_t context) const;
  struct VerifyGraphs;
  std::optional<attn::StepShape> recorded_shape(const Batch& batch, const VerifyGraphs& graphs) const;
  int32_t longest_of(const Batch& batch) const;
  const GraphSet* graphs_of(const attn::StepShape& shape, Part part) const;

  kv::RequestTable& table_;
  Exec& exec_;
  std::optional<kv::PageTableMirror> mirror_;  // of a GPU
  bool changes_table_ = false;                 // the inputs that were filled last have changes for the mirror
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepUpload upload_;
  int32_t feature_rows_ = 0;  // of the step: those of a batch that is followed
  model::Forward forward_;
  ops::DeviceSampler* sampler_;  // null: others draw
  struct Graphs {
    GraphSet whole, forward;  // with and without the sampler, where there is one
  };
  void capture(Graphs& graphs, const std::vector<int>& sizes, const std::function<attn::StepShape(int size)>& shape_of);
  void capture(GraphSet& graphs, const std::vector<int>& sizes,
               const std::function<attn::StepShape(int size)>& shape_of, Part part);
  // Of steps in which nobody brings more than a token and its drafts, with the sampler.
  struct VerifyGraphs {
    attn::StepShape (Runner::*shape)(int32_t sequences, int32_t rows, int32_t context) const;
    std::map<int32_t, std::map<int32_t, GraphSet>> graphs = {};  // by sequences, then by rows; each by the longest
  };
  void capture(VerifyGraphs& verification);
  std::map<int32_t, Graphs> decode_graphs_;  // by sequences; each by the longest of them
  int32_t verified_rows_;                    // of a sequence, at most; 1: nothing is drafted
  int32_t draft_rows_;                       // of all
  VerifyGraphs chain_graphs_{&Runner::verify_shape}, tree_graphs_{&Runner::tree_shape};
  Graphs extend_graphs_;     // by rows, up to extend_captured_
  int32_t extend_captured_;  // 0: no such graphs
  Graphs chunk_graphs_;      // of one prompt that fills a step, where that has more rows
  int32_t chunk_captured_;   // 0: no such graphs
};

}  // namespace quire::engine
