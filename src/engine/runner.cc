#include "engine/runner.h"

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

}  // namespace

Runner::Runner(const model::Model& model, const SchedulerLimits& limits, Dtype kv_type, const kv::RequestTable& table,
               Exec& exec)
    : table_(table),
      exec_(exec),
      most_rows_(limits.rows()),
      store_(model::kv_layout(model.config(), limits.pages + 1, limits.page_size, kv_type)),
      arena_(model::attention_limits(model.config(), limits.running, limits.context, limits.page_size, exec.threads())),
      inputs_(arena_.limits()),
      forward_(model, {.rows = most_rows_, .wanted_rows = limits.wanted_rows()}, kv_type) {
  capture(limits.running);
}

void Runner::capture(int32_t most) {
  fill({});
  decode_graphs_.capture(exec_, padded_sizes(most), [&](int size) {
    forward_.run(shape(attn::Mode::decode, size, size), inputs_.inputs(), arena_, store_, exec_);
  });
}

Runner::Outputs Runner::run(const Batch& batch) {
  check(batch.rows() <= most_rows_ && std::ssize(batch.shares) <= arena_.limits().batch, "a step of ", batch.rows(),
        " rows of ", batch.shares.size(), " requests, up to ", most_rows_, " of ", arena_.limits().batch, " have room");
  fill(batch);
  const auto live = static_cast<int32_t>(batch.shares.size());
  const bool decode = batch.only_single_tokens();
  const int32_t padded = decode ? decode_graphs_.padded_size(live) : live;
  const attn::StepShape step =
      decode ? shape(attn::Mode::decode, padded, padded) : shape(attn::Mode::extend, padded, batch.rows());
  attn::check_step(step, inputs_.inputs(), arena_.limits());
  if (decode)
    decode_graphs_.replay(exec_, live);
  else
    forward_.run(step, inputs_.inputs(), arena_, store_, exec_);
  const Rows<const float> logits = forward_.logits(), hidden = forward_.hidden();
  return {.logits = {logits.data, batch.with_logits(), logits.dim, logits.stride},
          .pooled = {hidden.row(batch.with_logits()), std::ssize(batch.pooled), hidden.dim, hidden.stride}};
}

void Runner::fill(const Batch& batch) {
  inputs_.live() = static_cast<int32_t>(batch.shares.size());
  *forward_.rows().count = 0;
  for (int32_t i = 0; i < inputs_.live(); ++i) fill_share(batch.shares[i], batch.token_ids.data(), i);
  fill_wanted(batch);
}

void Runner::fill_share(const Share& share, const int32_t* token_ids, int32_t index) {
  const model::StepRows& rows = forward_.rows();
  inputs_.rows()[index] = share.row;
  inputs_.lengths()[index] = {share.end()};
  inputs_.extend_lengths()[index] = {share.count};
  for (int32_t i = 0; i < share.count; ++i) {
    const int32_t row = (*rows.count)++;
    rows.ids[row] = token_ids[row];
    rows.positions[row] = share.position + i;
    rows.slots[row] = table_.slot(share.row, share.position + i);
  }
}

void Runner::fill_wanted(const Batch& batch) {
  int32_t* next = forward_.rows().wanted_index;
  for (const std::vector<WantedRow>* list : {&batch.drawn, &batch.scored, &batch.pooled})
    for (const WantedRow& wanted : *list) *next++ = wanted.row;
  *forward_.rows().wanted_count = batch.wanted_rows();
  *forward_.rows().logits_count = batch.with_logits();
}

attn::StepShape Runner::shape(attn::Mode mode, int32_t captured, int32_t rows) const {
  return {.mode = mode, .captured = captured, .query_rows = rows, .table = table_.view()};
}

}  // namespace quire::engine
