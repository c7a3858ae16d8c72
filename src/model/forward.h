// The layers, once: the walk over blocks (blocks.h) that turns one step's token ids into logits. The same walk runs
// eagerly for prompts and is recorded for decode.
//
// Buffers lie at fixed addresses and have the size of the limits. Before a call the host has filled the step's inputs;
// counts are read when an operation runs, so a recorded list serves every smaller batch.
//
// A row's logits depend on its own text alone, and on how far they are to be precise, to the bit: not on the other
// rows, the chunks that the text came in, the mode, the threads, or whether the list was recorded. A GPU takes the time
// for that only if it is told to be deterministic.
//
// Past the last layer's attention only the wanted rows go on, and they pass quantised weights at twice the precision
// (ops/activations.h; of logits those that matter, ops/logits.h): what is rounded there is not averaged out by later
// layers.
//
// Errors   CheckError before any work: limits, a store or an arena that are not the model's, a shape that does not fit.
//          Counts are not read here, where they may lie on a device: attn::check_step() checks them where they are
//          filled, and an operation of the CPU that meets more rows than it has room for throws.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/exec.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/feature_projection.h"
#include "model/model.h"

namespace quire::model {

// The store that a model's layers need, and a step's limits with the heads that they have.
kv::KvLayout kv_layout(const ModelConfig& config, int32_t pages, PageSize page_size, Dtype type);
attn::Limits attention_limits(const ModelConfig& config, attn::Limits limits);

class Forward {
 public:
  // The model outlives it, and stays where it is. Of the limits it has the rows (query_rows, wanted_rows) and the
  // device, which is the model's. features: those that are projected beside; null: none. They outlive it.
  // feature_rows: of how many rows, as it stands there when a step runs, on a CPU; null: of all.
  Forward(const Model& model, const attn::Limits& limits, Dtype kv_type, bool deterministic = false,
          const FeatureProjection* features = nullptr, const int32_t* feature_rows = nullptr);
  ~Forward();

  // Of the last step, row i for row wanted_rows[i] of its inputs: what leaves the last layer, normed; and the logits.
  // In the device's memory.
  Rows<const float> hidden() const;  // [wanted_rows, width]
  Rows<const float> logits() const;  // [wanted_rows, vocabulary]
  // Of the next step's wanted rows, on a CPU: how far below its largest a row's logits are precise (ops/logits.h). The
  // usual, until somebody writes there.
  std::span<float> logit_reach() const;
  // Of all rows of the last step; none without a projection.
  Rows<const float> features() const;  // [query_rows, width]

  // Writes the step's metadata, runs every layer over the rows, computes what is wanted. Records while exec
  // captures. Modes decode and extend, of up to shape.query_rows rows. Before: check_step() passed, input_ids are
  // in the vocabulary. The arena is of the model's heads and head dim.
  void run(const attn::StepShape& shape, const attn::StepInputs& inputs, const attn::MetadataArena& arena,
           const kv::KvStore& store, Exec& exec) const;

  // Contexts, ascending to the limits', each of which is worth a recorded decode of this shape of its own: steps of no
  // longer sequences are attended to in a way of their own.
  std::vector<int32_t> decode_contexts(const attn::StepShape& shape, const attn::MetadataArena& arena,
                                       const kv::KvStore& store, Exec& exec) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::model
