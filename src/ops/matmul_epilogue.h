// From finished sums to memory: a row's two added where it has two (q8x2), then bias, then scaled and set or added, or
// silu of the gate times up. Written once, from registers.
//
// Internal linkage: compiled with several sets of flags.
#pragma once
#include <cstring>

#include "base/simd/exp2.h"
#include "ops/matmul_task.h"

namespace quire::ops::cpu {
namespace {

// silu(x) = x / (1 + exp(-x)) for any of the SIMD types, the same bits for all that fuse products. Computed with
// exp(-|x|), which cannot overflow, so that large negative numbers give zeros whatever they meet next.
template <class S>
inline typename S::F silu(typename S::F x) {
  using F = typename S::F;
  const F zero = S::set1(0.0f);
  const F exponent = S::mul(x, S::set1(1.44269504f));
  const F e = simd::exp2<S>(S::min(S::sub(zero, exponent), exponent));
  // x where it is positive, else x e; with x as the second argument NaN stays NaN.
  const F numerator = S::fma(S::min(zero, x), e, S::max(zero, x));
  return S::div(numerator, S::add(S::set1(1.0f), e));
}

// Where the results of one tile go.
struct Place {
  float* out;  // row 0 of the whole output
  int64_t stride;
  int64_t columns;  // that exist, up to 16
  Action action;
  int halves;         // of Target
  const float* bias;  // [16], or null
  float scale;
  float* kept;  // [kSweepRows][16], by rows of the sweep
  float padded_bias[kTileColumns];
};

inline void find_place(const Target& target, int64_t tile, float* kept, Place& place) {
  const int64_t odd = tile % 2, column = (target.alternating ? tile / 2 : tile) * kTileColumns;
  const int64_t left = target.columns - column;
  place.out = target.out + column;
  place.stride = target.stride;
  place.columns = left < kTileColumns ? left : kTileColumns;
  place.action = target.action[odd];
  place.halves = target.halves;
  place.scale = target.scale;
  place.bias = target.bias[odd] ? target.bias[odd] + column : nullptr;
  place.kept = kept;
  if (!place.bias || place.columns == kTileColumns) return;
  std::memcpy(place.padded_bias, place.bias, static_cast<size_t>(place.columns) * sizeof(float));
  place.bias = place.padded_bias;
}

// Asks for the lines that the rows' results will be stored to, while their products are computed.
inline void fetch_outputs(const Place& place, int64_t row, int64_t count) {
  if (place.action == Action::keep) return;
  const float* first = place.out + (row >> place.halves) * place.stride;
  for (int64_t r = 0; r < count >> place.halves; ++r) __builtin_prefetch(first + r * place.stride, 1, 3);
}

// S::kWidth columns from `column` on, of which `present` exist.
template <class S>
inline typename S::F load_present(const float* from, int64_t present) {
  if (present >= S::kWidth) [[likely]]
    return S::load(from);
  float whole[S::kWidth] = {};
  if (present > 0) std::memcpy(whole, from, static_cast<size_t>(present) * sizeof(float));
  return S::load(whole);
}
template <class S>
inline void store_present(float* to, typename S::F x, int64_t present) {
  if (present >= S::kWidth) [[likely]]
    return S::store(to, x);
  float whole[S::kWidth];
  S::store(whole, x);
  if (present > 0) std::memcpy(to, whole, static_cast<size_t>(present) * sizeof(float));
}

// The results x of one row and the tile's columns [column, column + width). `swept` is the row's number in the sweep.
template <class S>
inline void put(const Place& place, int64_t row, int64_t swept, int column, typename S::F x) {
  if (place.bias) x = S::add(x, S::load(place.bias + column));
  float* kept = place.kept + swept * kTileColumns + column;
  if (place.action == Action::keep) return S::store(kept, x);
  float* out = place.out + row * place.stride + column;
  const int64_t present = place.columns - column;
  x = S::mul(x, S::set1(place.scale));
  if (place.action == Action::add) x = S::add(load_present<S>(out, present), x);
  if (place.action == Action::silu_mul_kept) x = S::mul(silu<S>(S::load(kept)), x);
  store_present<S>(out, x, present);
}

// The sums of `count` rows that follow each other. Rows with halves come in even numbers, so no group of rows cuts one
// in two.
template <class S>
inline void put_rows(const Place& place, int64_t row, int64_t swept, int column, const typename S::F* sums,
                     int64_t count) {
  for (int64_t r = 0; r < count; r += 1 << place.halves) {
    const typename S::F x = place.halves ? S::add(sums[r], sums[r + 1]) : sums[r];
    put<S>(place, (row + r) >> place.halves, (swept + r) >> place.halves, column, x);
  }
}

}  // namespace
}  // namespace quire::ops::cpu
