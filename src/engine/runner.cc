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
  check(batch.rows <= most_rows_ && std::ssize(batch.shares) <= arena_.limits().batch, "a step of ", batch.rows,
        " rows of ", batch.shares.size(), " requests, up to ", most_rows_, " of ", arena_.limits().batch, " have room");
  fill(batch);
  const auto live = static_cast<int32_t>(batch.shares.size());
  const bool decode = batch.only_single_tokens();
  const int32_t padded = decode ? decode_graphs_.padded_size(live) : live;
  const attn::StepShape step =
      decode ? shape(attn::Mode::decode, padded, padded) : shape(attn::Mode::extend, padded, batch.rows);
  attn::check_step(step, inputs_.inputs(), arena_.limits());
  if (decode)
    decode_graphs_.replay(exec_, live);
  else
    forward_.run(step, inputs_.inputs(), arena_, store_, exec_);
  const Rows<const float> logits = forward_.logits(), hidden = forward_.hidden();
  const int32_t with_logits = batch.draws + batch.scored;
  return {.logits = {logits.data, with_logits, logits.dim, logits.stride},
          .pooled = {hidden.row(with_logits), batch.pooled, hidden.dim, hidden.stride}};
}

void Runner::fill(const Batch& batch) {
  inputs_.live() = static_cast<int32_t>(batch.shares.size());
  *forward_.rows().count = 0;
  for (int32_t i = 0; i < inputs_.live(); ++i) fill_share(batch.shares[i], i);
  fill_wanted(batch);
}

void Runner::fill_share(const Share& share, int32_t index) {
  const model::StepRows& rows = forward_.rows();
  const Sequence& sequence = *share.sequence;
  const int32_t end = sequence.computed + share.count;
  inputs_.rows()[index] = sequence.row;
  inputs_.lengths()[index] = {end};
  inputs_.extend_lengths()[index] = {share.count};
  for (int32_t position = sequence.computed; position < end; ++position) {
    const int32_t row = (*rows.count)++;
    rows.ids[row] = sequence.tokens[position];
    rows.positions[row] = position;
    rows.slots[row] = table_.slot(sequence.row, position);
  }
}

void Runner::fill_wanted(const Batch& batch) {
  int32_t* next = forward_.rows().wanted_index;
  const auto for_each_share = [&](const auto& visit) {
    int32_t row = 0;
    for (const Share& share : batch.shares) {
      visit(share, row);
      row += share.count;
    }
  };
  const auto add_kept = [&](const Share& share, int32_t first) {
    for (int32_t i = 0; i < share.kept.count(); ++i) *next++ = first + share.kept.begin - share.sequence->computed + i;
  };
  for_each_share([&](const Share& share, int32_t first) {
    if (share.draws) *next++ = first + share.count - 1;
  });
  for_each_share([&](const Share& share, int32_t first) {
    if (share.scored() > 0) add_kept(share, first);
  });
  for_each_share([&](const Share& share, int32_t first) {
    if (share.pooled() > 0) add_kept(share, first);
  });
  *forward_.rows().wanted_count = batch.wanted_rows();
  *forward_.rows().logits_count = batch.draws + batch.scored;
}

attn::StepShape Runner::shape(attn::Mode mode, int32_t captured, int32_t rows) const {
  return {.mode = mode, .captured = captured, .query_rows = rows, .table = table_.view()};
}

}  // namespace quire::engine
