// A planned step becomes logits and last rows: owns the keys and values, attention's metadata and the model's buffers.
//
// Steps in which every request brings one token replay a recorded graph of the smallest padded size that fits; steps
// with chunks of prompts run eagerly. A row's results are the same either way.
//
// Before   the batch's pages are reserved in the request table that the runner was made with; all its tokens are known.
// Memory   address space when it is made; resident as tokens come. A step allocates nothing.
// Errors   a step that does not fit the limits throws CheckError before any work.
#pragma once
#include <cstdint>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/exec.h"
#include "base/graph.h"
#include "base/tensor.h"
#include "engine/batch.h"
#include "engine/scheduler.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/forward.h"
#include "model/model.h"

namespace quire::engine {

class Runner {
 public:
  // The model, the table and exec outlive the runner.
  Runner(const model::Model& model, const SchedulerLimits& limits, Dtype kv_type, const kv::RequestTable& table,
         Exec& exec);

  // Valid until the next run.
  struct Outputs {
    Rows<const float> logits;  // of the batch's drawn rows, then of its scored ones
    Rows<const float> pooled;  // the batch's pooled rows, after the last layer and its norm
  };
  Outputs run(const Batch& batch);

 private:
  void capture(int32_t most);
  void fill(const Batch& batch);
  void fill_share(const Share& share, const int32_t* token_ids, int32_t index);
  void fill_wanted(const Batch& batch);
  attn::StepShape shape(attn::Mode mode, int32_t captured, int32_t rows) const;

  const kv::RequestTable& table_;
  Exec& exec_;
  int32_t most_rows_;
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  model::Forward forward_;
  GraphSet decode_graphs_;
};

}  // namespace quire::engine
