// What attention means for one query row, in double: the arithmetic that the reference kernel and the shadow checker
// share. Which keys the row sees is the caller's business.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attn/attention.h"

namespace quire::attn {

// Positions [first, end) that a row sees.
struct KeySpan {
  int64_t first;
  int64_t end;
};

// Of the positions [start, end), those that the window leaves to a row at `position`.
inline KeySpan windowed(int64_t start, int64_t end, int64_t position, int32_t window) {
  return {window < 0 ? start : std::max(start, position - window), end};
}

// A row's softmax in one pass: the sum and the result are relative to the largest score so far.
class RowState {
 public:
  static constexpr int32_t kMostValues = 512;

  // Folds in one key: its score and its value row, from element `first` of `values`.
  void add(double score, Dtype type, const std::byte* values, int64_t first, int32_t dim) {
    if (score > top_) {
      const double shrink = std::exp(top_ - score);
      sum_ *= shrink;
      for (int32_t d = 0; d < dim; ++d) out_[d] *= shrink;
      top_ = score;
    }
    const double weight = std::exp(score - top_);
    sum_ += weight;
    for (int32_t d = 0; d < dim; ++d) out_[d] += weight * load_element(type, values, first + d);
  }
  double lse() const { return top_ + std::log(sum_); }
  // The result's element, with a sink of the given logit in the denominator; -inf: none.
  double out(int32_t d, double sink) const {
    const double top = std::max(top_, sink);
    const double share = std::exp(top_ - top);
    return out_[d] * share / (sum_ * share + std::exp(sink - top));
  }

 private:
  double top_ = -std::numeric_limits<double>::infinity();
  double sum_ = 0;
  double out_[kMostValues] = {};
};

inline double score_ref(const AttendArgs& args, int64_t row, int32_t head, TokenSlot slot) {
  const kv::LayerKv& kv = args.kv;
  const int32_t kv_head = head / (args.q.heads / kv.kv_heads);
  const int64_t key = slot.value * kv.key_stride + int64_t{kv_head} * kv.key_dim;
  const std::byte* query = args.q.at(row, head);
  double dot = 0;
  for (int32_t d = 0; d < kv.key_dim; ++d)
    dot += double{load_element(args.q.type, query, d)} * load_element(kv.type, kv.keys, key + d);
  const double x = dot * args.scale * kv.key_scale;
  return args.softcap > 0 ? args.softcap * std::tanh(x / args.softcap) : x;
}

inline void store_row_ref(const AttendArgs& args, int64_t row, int32_t head, const RowState* state) {
  const double sink = args.sinks ? args.sinks[head] : -std::numeric_limits<double>::infinity();
  for (int32_t d = 0; d < args.out.dim; ++d)
    store_element(args.out.type, args.out.at(row, head), d,
                  state ? static_cast<float>(state->out(d, sink) * args.kv.value_scale) : 0.0f);
  if (args.lse)
    args.lse[head * args.q.rows + row] =
        state ? static_cast<float>(state->lse()) : -std::numeric_limits<float>::infinity();
}

// The row over the positions of `span`, in order; slot_of(position) says where each lies. No positions: (0, -inf).
template <class SlotOf>
void attend_row_ref(const AttendArgs& args, int64_t row, KeySpan span, const SlotOf& slot_of) {
  const kv::LayerKv& kv = args.kv;
  for (int32_t head = 0; head < args.q.heads; ++head) {
    const int32_t kv_head = head / (args.q.heads / kv.kv_heads);
    RowState state;
    for (int64_t position = span.first; position < span.end; ++position) {
      const TokenSlot slot = slot_of(position);
      state.add(score_ref(args, row, head, slot), kv.type, kv.values,
                slot.value * kv.value_stride + int64_t{kv_head} * kv.value_dim, kv.value_dim);
    }
    store_row_ref(args, row, head, span.first < span.end ? &state : nullptr);
  }
}

}  // namespace quire::attn
