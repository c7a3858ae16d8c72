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
// Runs at once: it looks at the inputs on the host. Which other rows a step has does not change a row's bits.
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
  // The head outlives it. Of the limits it has the rows (query_rows, wanted_rows).
  DraftForward(const EagleHead& head, const attn::Limits& limits, Dtype kv_type);
  ~DraftForward();

  Rows<float> states() const;             // [query_rows, width]
  Rows<const float> next_states() const;  // [wanted_rows, width]
  Rows<const float> logits() const;       // [wanted_rows, draft vocabulary], divided by the head's temperature

  // Modes draft_extend and decode. Before: check_step() passed.
  void run(const attn::StepShape& shape, const attn::StepInputs& inputs, const attn::MetadataArena& arena,
           const kv::KvStore& store, Exec& exec) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::model
