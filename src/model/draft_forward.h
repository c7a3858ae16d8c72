// A head's one layer over the rows of a step: from token ids and states to what it guesses next.
//
// A row is a slot of docs/speculation.md: a token, and the state that enters beside it, which is the target's features
// of the token before (Forward::features()), or what the row before handed on. Keys and values go to a store of one
// layer, in the same slots as the target's.
//
//   before   states().row(i) and the inputs of row i are filled
//   run      keys and values of all rows are stored; of the wanted rows the layer is computed to its end
//   after    logits().row(i), next_states().row(i) of row wanted_rows[i]
//
// run() is the CPU's, and runs at once: it looks at the inputs on the host. A GPU records its steps, whose metadata is
// written before, as the two kinds that a round is made of: extend() over new rows of requests, of which the last of
// each goes on, and pass() over one row of each, or of each of its branches. Which other rows a step has does not
// change a row's bits; on a GPU, if it was told to be deterministic.
#pragma once
#include <cstdint>
#include <memory>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/exec.h"
#include "base/tensor.h"
#include "kv/store.h"
#include "model/eagle_head.h"

namespace quire::model {

// The store that a head's layer needs, and a step's limits with the heads that it has.
kv::KvLayout draft_kv_layout(const EagleSpec& spec, int32_t pages, PageSize page_size, Dtype type);
attn::Limits draft_attention_limits(const EagleSpec& spec, attn::Limits limits);

class DraftForward {
 public:
  // The head outlives it. Of the limits it has the rows (query_rows, wanted_rows), and the device, which is the head's.
  DraftForward(const EagleHead& head, const attn::Limits& limits, Dtype kv_type, bool deterministic = false);
  ~DraftForward();

  Rows<float> states() const;             // [query_rows, width]
  Rows<const float> next_states() const;  // [wanted_rows, width]
  Rows<const float> logits() const;       // [wanted_rows, draft vocabulary], divided by the head's temperature

  // Modes draft_extend, decode and draft_tree. Before: check_step() passed. The metadata of all draft steps of a tree
  // is written with its first (shape.draft_step 0); between two of them stands attn::follow_parents().
  void run(const attn::StepShape& shape, const attn::StepInputs& inputs, const attn::MetadataArena& arena,
           const kv::KvStore& store, Exec& exec) const;

  // What a GPU's step is recorded with.
  struct Recorded {
    attn::StepShape shape;  // of attention, which has one query of each request: mode decode, or draft; or one of each
                            // branch: draft_tree
    attn::StepInputs inputs;
    const attn::MetadataArena& arena;
    const kv::KvStore& store;
    Exec& exec;
  };
  // rows: room for those of all requests. wanted_rows has the last row of each, in their order.
  void extend(const Recorded& step, int64_t rows) const;
  // One of several, whose angles were made together: those of this one begin with row `first_angle`. States are
  // changed in place; what goes on is passed_states().
  void make_angles(const int32_t* positions, const int32_t* live_rows, Exec& exec) const;
  void pass(const Recorded& step, int64_t first_angle) const;
  Rows<const float> passed_states() const;  // [wanted_rows, width]

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::model
