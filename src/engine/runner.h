// A planned step becomes logits and last rows: owns the keys and values, the step's inputs, attention's metadata and
// the model's buffers.
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
#include "attn/step_upload.h"
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
  void capture();
  void check_room(const Batch& batch) const;
  void fill(const Batch& batch, const attn::StepInputBuffers& inputs) const;
  attn::StepShape shape(const Batch& batch) const;
  attn::StepShape shape(attn::Mode mode, int32_t captured, int32_t rows) const;

  const kv::RequestTable& table_;
  Exec& exec_;
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepUpload upload_;
  model::Forward forward_;
  GraphSet decode_graphs_;
};

}  // namespace quire::engine
