// The softmax of one block: scores become probabilities relative to the row's new maximum.
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

// How far scores may rise above the maximum in use, in log2 units, before it follows them: probabilities up to 2^8 are
// as exact as those up to 1, and a maximum that stays saves the rescaling of sums and results.
constexpr float kRescaleThreshold = 8.0f;

// Where scaling does not keep the order of scores, or a cap bends them, they are finished in memory before the maximum
// is taken; else the scale is applied as the last step, fused with the subtraction of the maximum.
inline bool finished_early(const TileState& t) { return t.softcap > 0 || !(t.score_scale > 0); }

// One row: its scores are finished if they must be early, and what it does not see becomes -inf.
template <class S>
inline void prepare_scores(TileState& t, int32_t row, const BlockKeys& keys) {
  using F = typename S::F;
  const int32_t low = max_of(t.low[row] - keys.position, keys.begin);
  const int32_t high = min_of(t.high[row] - keys.position, keys.end);
  const bool early = finished_early(t);
  if (!early && low <= 0 && high >= kBlock) return;
  for (int32_t i = 0; i < kBlock; i += S::kWidth) {
    float* s = t.s + row * kBlock + i;
    F x = S::load(s);
    if (early) x = S::mul(x, S::set1(t.score_scale));
    if (t.softcap > 0) x = capped<S>(x, t.softcap);
    S::store(s, S::keep_between(x, i, low, high, S::set1(kEmpty)));
  }
}

// At most S::kWidth rows at once: their maxima move together. s holds raw products on entry; `put(row, i, p)` takes the
// probabilities of keys [i, i + width). For a row that sees nothing of the block all p are 0 and nothing changes.
template <class S, class Put>
inline void softmax_group(TileState& t, int32_t first, int32_t rows, const BlockKeys& keys, Put put) {
  using F = typename S::F;
  constexpr int W = S::kWidth;
  F top[W];
  float before[W];
  for (int r = 0; r < W; ++r) {
    top[r] = S::set1(kEmpty);
    before[r] = kEmpty;
    if (r >= rows) continue;
    before[r] = t.m[first + r];
    prepare_scores<S>(t, first + r, keys);
    const float* s = t.s + (first + r) * kBlock;
    for (int i = 0; i < kBlock; i += W) top[r] = S::max(top[r], S::load(s + i));
  }
  const F scale = S::set1(finished_early(t) ? 1.0f : t.score_scale);
  const F old_max = S::load(before);
  const F new_max = S::raised(old_max, S::mul(S::max_of_rows(top), scale), kRescaleThreshold);
  const F base = S::zero_if_empty(new_max);  // all scores -inf: exp2(-inf - 0) is 0, not NaN
  float after[W], bases[W], factors[W];
  S::store(after, new_max);
  S::store(bases, base);
  S::store(factors, simd::exp2<S>(S::sub(old_max, base)));

  for (int32_t r = 0; r < rows; ++r) {
    const F shift = S::set1(-bases[r]);
    F sum[16 / W];
    for (F& lanes : sum) lanes = S::zero();
    for (int i = 0; i < kBlock; i += W) {
      const F p = simd::exp2<S>(S::fma(S::load(t.s + (first + r) * kBlock + i), scale, shift));
      put(first + r, i, p);
      sum[i / W % (16 / W)] = S::add(sum[i / W % (16 / W)], p);
    }
    for (int i = 0; i < 16 / W; ++i) {
      float* lanes = t.l + (first + r) * 16 + i * W;
      S::store(lanes, S::fma(S::load(lanes), S::set1(factors[r]), sum[i]));
    }
    t.m[first + r] = after[r];
    t.factor[first + r] = factors[r];
  }
}

template <class S, class Put>
inline void softmax_rows(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, Put put) {
  for (int32_t r = first; r < end; r += S::kWidth) softmax_group<S>(t, r, min_of(S::kWidth, end - r), keys, put);
}

}  // namespace
}  // namespace quire::attn::cpu
