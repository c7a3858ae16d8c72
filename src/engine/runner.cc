#include "engine/runner.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace quire::engine {
namespace {

// Powers of two, and the most itself.
std::vector<int> padded_sizes(int32_t most) {
  std::vector<int> sizes;
  for (int size = 1; size < most; size *= 2) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

// Of the inputs, where a GPU computes: the host fills one while two steps are in flight.
constexpr int32_t kInputCopies = 3;

attn::Limits step_limits(const model::ModelConfig& config, const SchedulerLimits& limits, const Exec& exec) {
  return model::attention_limits(config, {.batch = limits.running,
                                          .context = limits.context,
                                          .page_size = limits.page_size,
                                          .threads = exec.threads(),
                                          .query_rows = limits.rows(),
                                          .wanted_rows = limits.wanted_rows()});
}

}  // namespace

Runner::Runner(const model::Model& model, const SchedulerLimits& limits, Dtype kv_type, const kv::RequestTable& table,
               Exec& exec)
    : table_(table),
      exec_(exec),
      store_(model::kv_layout(model.config(), limits.pages + 1, limits.page_size, kv_type)),
      arena_(step_limits(model.config(), limits, exec)),
      upload_(arena_.limits(), kInputCopies, exec),
      forward_(model, arena_.limits(), kv_type) {
  capture();
}

void Runner::capture() {
  decode_graphs_.capture(exec_, padded_sizes(arena_.limits().batch), [&](int size) {
    forward_.run(shape(attn::Mode::decode, size, size), upload_.inputs(), arena_, store_, exec_);
  });
}

Runner::Outputs Runner::run(const Batch& batch) {
  check_room(batch);
  const attn::StepInputBuffers& inputs = upload_.next();
  fill(batch, inputs);
  const attn::StepShape step = shape(batch);
  attn::check_step(step, inputs.inputs(), arena_.limits());
  upload_.send();
  if (step.mode == attn::Mode::decode)
    decode_graphs_.replay(exec_, step.captured);
  else
    forward_.run(step, upload_.inputs(), arena_, store_, exec_);
  const Rows<const float> logits = forward_.logits(), hidden = forward_.hidden();
  return {.logits = {logits.data, batch.with_logits(), logits.dim, logits.stride},
          .pooled = {hidden.row(batch.with_logits()), std::ssize(batch.pooled), hidden.dim, hidden.stride}};
}

void Runner::check_room(const Batch& batch) const {
  const attn::Limits& limits = arena_.limits();
  check(batch.rows() <= limits.query_rows && std::ssize(batch.shares) <= limits.batch &&
            batch.wanted_rows() <= limits.wanted_rows,
        "a step of ", batch.rows(), " rows of ", batch.shares.size(), " requests, ", batch.wanted_rows(),
        " wanted; up to ", limits.query_rows, " of ", limits.batch, " have room, ", limits.wanted_rows, " wanted");
}

void Runner::fill(const Batch& batch, const attn::StepInputBuffers& inputs) const {
  inputs.live() = static_cast<int32_t>(batch.shares.size());
  inputs.query_rows() = batch.rows();
  std::copy(batch.token_ids.begin(), batch.token_ids.end(), inputs.input_ids());
  int32_t row = 0;
  for (int32_t b = 0; b < inputs.live(); ++b) {
    const Share& share = batch.shares[b];
    inputs.rows()[b] = share.row;
    inputs.lengths()[b] = {share.end()};
    inputs.extend_lengths()[b] = {share.count};
    for (int32_t position = share.position; position < share.end(); ++position, ++row) {
      inputs.positions()[row] = position;
      inputs.slot_mapping()[row] = table_.slot(share.row, position);
    }
  }
  int32_t wanted = 0;
  for (const std::vector<WantedRow>* list : {&batch.drawn, &batch.scored, &batch.pooled})
    for (const WantedRow& each : *list) inputs.wanted_rows()[wanted++] = each.row;
  inputs.wanted_count() = wanted;
  inputs.logits_count() = batch.with_logits();
}

attn::StepShape Runner::shape(const Batch& batch) const {
  const auto live = static_cast<int32_t>(batch.shares.size());
  if (!batch.only_single_tokens()) return shape(attn::Mode::extend, live, batch.rows());
  const int32_t padded = decode_graphs_.padded_size(live);
  return shape(attn::Mode::decode, padded, padded);
}

attn::StepShape Runner::shape(attn::Mode mode, int32_t captured, int32_t rows) const {
  return {.mode = mode, .captured = captured, .query_rows = rows, .table = table_.view()};
}

}  // namespace quire::engine
