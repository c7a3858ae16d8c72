// The softmax of one block, row by row: scores become probabilities relative to the row's new maximum.
// Internal linkage for the reason attend_walk.h gives.
#pragma once
#include "attn/attend_walk.h"

namespace quire::attn::cpu {
namespace {

// c * tanh(x), in log2 units; x is already divided by c.
template <class S>
inline typename S::F capped(typename S::F x, float cap) {
  using F = typename S::F;
  const F bounded = S::max(S::set1(-15.0f), S::min(S::set1(15.0f), x));
  const F e = simd::exp2<S>(S::mul(bounded, S::set1(2.0f * kLog2e)));
  const F tanh = S::div(S::sub(e, S::set1(1.0f)), S::add(e, S::set1(1.0f)));
  return S::mul(tanh, S::set1(cap * kLog2e));
}

// Rows [first, end): s holds raw products on entry. `put(row, i, p)` takes the probabilities of keys [i, i + width).
// A row that sees nothing of the block is left as it is, with factor 1 and probabilities 0.
template <class S, class Put>
inline void softmax_rows(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, Put put) {
  using F = typename S::F;
  constexpr int kVectors = kBlock / S::kWidth;
  for (int32_t r = first; r < end; ++r) {
    const int32_t low = max_of(t.low[r] - keys.position, keys.begin);
    const int32_t high = min_of(t.high[r] - keys.position, keys.end);
    if (low >= high) {
      t.factor[r] = 1.0f;
      for (int v = 0; v < kVectors; ++v) put(r, v * S::kWidth, S::zero());
      continue;
    }
    F x[kVectors];
    const F scale = S::set1(t.score_scale);
    for (int v = 0; v < kVectors; ++v) x[v] = S::mul(S::load(t.s + r * kBlock + v * S::kWidth), scale);
    if (t.softcap > 0)
      for (int v = 0; v < kVectors; ++v) x[v] = capped<S>(x[v], t.softcap);
    if (low > 0 || high < kBlock)
      for (int v = 0; v < kVectors; ++v) x[v] = S::keep_between(x[v], v * S::kWidth, low, high, S::set1(kEmpty));

    F top = x[0];
    for (int v = 1; v < kVectors; ++v) top = S::max(top, x[v]);
    const float before = t.m[r];
    const float block_max = S::reduce_max(top);
    const float after = before > block_max ? before : block_max;
    const float base = after == kEmpty ? 0.0f : after;  // all scores -inf: exp2(-inf - 0) is 0, not NaN
    t.m[r] = after;

    const F base_v = S::set1(base);
    F sum[16 / S::kWidth];
    for (int i = 0; i < 16 / S::kWidth; ++i) sum[i] = S::zero();
    for (int v = 0; v < kVectors; ++v) {
      const F p = simd::exp2<S>(S::sub(x[v], base_v));
      put(r, v * S::kWidth, p);
      sum[v % (16 / S::kWidth)] = S::add(sum[v % (16 / S::kWidth)], p);
    }
    const float factor = S::first(simd::exp2<S>(S::set1(before - base)));
    t.factor[r] = factor;
    for (int i = 0; i < 16 / S::kWidth; ++i) {
      float* lanes = t.l + r * 16 + i * S::kWidth;
      S::store(lanes, S::fma(S::load(lanes), S::set1(factor), sum[i]));
    }
  }
}

}  // namespace
}  // namespace quire::attn::cpu
