// One block on vectors, for any SIMD type, any element type of keys and values, and two kinds of arithmetic:
//
//   WidenedProducts   elements widened to f32, fused products; exact in the inputs
//   PairDots          pairs of bf16 multiplied and added by one instruction, probabilities rounded to bf16
//
// Both see a row of queries as units (an element, or a pair) and take a block's keys in steps (a key, or a pair):
//
//   score(row, key)    a chain of products over the even units plus one over the odd ones, ascending
//   out(row, dim)      one chain over the steps of keys, ascending
//
// So a row's bits do not depend on which rows are computed beside it. Few rows (decode) read keys and values straight
// from their pages; many rows share a block that is widened or paired once, keys also transposed. Internal linkage for
// the reason attend_walk.h gives.
#pragma once
#include "attn/attend_softmax.h"

namespace quire::attn::cpu {
namespace {

template <class S, Dtype T>
struct WidenedProducts {
  using Simd = S;
  using F = typename S::F;
  static constexpr Dtype kType = T;
  static constexpr int kUnitsInWord = 4 / size_of(T);
  static constexpr int kKeysInStep = 1;

  static F add_product(F x, F column, F sum) { return S::fma(x, column, sum); }
  static F unit(typename S::Words word, int i) { return S::template element<T>(word, i); }
  static int32_t units(int32_t key_dim) { return key_dim; }
  // The row's units, as 32-bit values in natural order.
  static void read_query(const std::byte* from, Dtype type, int32_t key_dim, float* to) {
    switch (type) {
      case Dtype::f32:
        return widen<Dtype::f32>(from, key_dim, to);
      case Dtype::bf16:
        return widen<Dtype::bf16>(from, key_dim, to);
      default:
        return widen<Dtype::f16>(from, key_dim, to);
    }
  }
  static void put_probabilities(float* row, int i, F p) { S::store(row + i, p); }
  // Dimensions [i, i + width) of a step's values, in the order that finish_row() undoes.
  static F values(const std::byte* const* rows, int64_t offset, int32_t i) {
    return S::template load_as<T>(rows[0] + offset + i * size_of(T));
  }
  static void finish_row(float*, int32_t) {}

 private:
  template <Dtype From>
  static void widen(const std::byte* from, int32_t count, float* to) {
    for (int32_t i = 0; i < count; i += S::kWidth)
      S::store(to + i, S::template load_as<From>(from + i * size_of(From)));
  }
};

template <class Arithmetic>
struct VectorEngine {
  using A = Arithmetic;
  using S = typename A::Simd;
  using Simd = S;
  using F = typename S::F;
  static constexpr int W = S::kWidth;
  static constexpr int kRowTile = S::kRegisters == 32 ? 6 : 4;     // rows in registers
  static constexpr int kVectorTile = S::kRegisters == 32 ? 4 : 2;  // vectors of keys or dims in registers
  static constexpr int kFewRows = 4;                               // at most: no block is packed
  static constexpr int kUnitsInWord = A::kUnitsInWord;
  static constexpr int kBytesInUnit = 4 / kUnitsInWord;
  static constexpr int kKeysInStep = A::kKeysInStep;
  static constexpr int kTailWords = W < 4 ? W : 4;  // dims are multiples of 16 elements: of 4 words at least

  // Even units first, then the odd ones: the order of the two chains.
  static void load_queries(const Task& task, const WorkItem& item, TileState& t) {
    const int32_t units = A::units(t.key_dim), half = units / 2;
    for (int32_t r = 0; r < t.rows; ++r) {
      const RowPlace place = place_of(task, item, r);
      float* natural = t.s;  // not in use yet; a row of queries fits in it
      A::read_query(task.args.q.at(place.query, place.head), task.args.q.type, t.key_dim, natural);
      float* q = reinterpret_cast<float*>(t.q) + r * units;
      for (int32_t i = 0; i < half; ++i) {
        q[i] = natural[2 * i];
        q[half + i] = natural[2 * i + 1];
      }
    }
  }

  static void block(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t key_offset,
                    int64_t value_offset, Prefetch& next_keys, Prefetch& next_values) {
    const bool few = end - first <= kFewRows;
    if (few)
      with_rows<kFewRows>(end - first, [&](auto n) { score_few<n()>(t, first, keys, key_offset, next_keys); });
    else
      score_many(t, first, end, keys, key_offset, next_keys);
    softmax_rows<S>(t, first, end, keys, [&](int32_t r, int i, F p) { A::put_probabilities(t.s + r * kBlock, i, p); });
    if (few)
      accumulate_few(t, first, end, keys, value_offset, next_values);
    else
      accumulate_many(t, first, end, keys, value_offset, next_values);
  }

  static void finish_range(TileState& t) {
    for (int32_t r = 0; r < t.rows; ++r) A::finish_row(t.o + r * t.value_dim, t.value_dim);
  }

 private:
  // W keys straight from their pages, a cache line of each (or W words of it) at a time.
  template <int Rows>
  [[gnu::noinline]] static void score_few(TileState& t, int32_t first, const BlockKeys& keys, int64_t offset,
                                          Prefetch& next) {
    const int32_t units = A::units(t.key_dim);
    const float* q = reinterpret_cast<const float*>(t.q) + first * units;
    for (int32_t j = 0; j < kBlock; j += W) {
      if (j >= keys.end || j + W <= keys.begin) continue;  // masked, whatever stands in s
      F sum[2][Rows];
      for (int r = 0; r < Rows; ++r) sum[0][r] = sum[1][r] = S::zero();
      int32_t u = 0;
      for (; u + W * kUnitsInWord <= units; u += W * kUnitsInWord) {
        next.fetch(W * W * 4 / 64);  // as many lines as are read
        add_words<Rows, W>(q + u / 2, units, keys.key + j, offset + u * kBytesInUnit, sum);
      }
      for (; u < units; u += kTailWords * kUnitsInWord)
        add_words<Rows, kTailWords>(q + u / 2, units, keys.key + j, offset + u * kBytesInUnit, sum);
      for (int r = 0; r < Rows; ++r) S::store(t.s + (first + r) * kBlock + j, S::add(sum[0][r], sum[1][r]));
    }
  }

  // Adds the products of `Count` words of each key. All is unrolled: the sums stay in registers, and a unit's parity,
  // and with it its chain, is known to the compiler.
  template <int Rows, int Count>
  [[gnu::always_inline]] static void add_words(const float* q, int32_t units, const std::byte* const* rows,
                                               int64_t offset, F (&sum)[2][Rows]) {
    typename S::Words word[W];
    S::load_words(word, rows, offset, Count);
#pragma GCC unroll 16
    for (int w = 0; w < Count; ++w) {
#pragma GCC unroll 4
      for (int i = 0; i < kUnitsInWord; ++i) {
        const int in_step = w * kUnitsInWord + i;
        const F column = A::unit(word[w], i);
        const float* x = q + in_step % 2 * (units / 2) + in_step / 2;
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r)
          sum[in_step % 2][r] = A::add_product(S::set1(x[r * units]), column, sum[in_step % 2][r]);
      }
    }
  }

  static void score_many(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t offset,
                         Prefetch& next) {
    float* panel = reinterpret_cast<float*>(t.keys);  // [units, kBlock]: even units, then odd ones
    const int32_t units = A::units(t.key_dim), half = units / 2;
    for (int32_t j = 0; j < kBlock; j += W)
      for (int32_t u = 0; u < units; u += W * kUnitsInWord) {
        const int32_t words = min_of(W, (units - u) / kUnitsInWord);
        typename S::Words word[W];
        S::load_words(word, keys.key + j, offset + u * kBytesInUnit, words);
        next.fetch(W * W * 4 / 64);  // as many lines as were read
        for (int w = 0; w < words; ++w)
          for (int i = 0; i < kUnitsInWord; ++i) {
            const int32_t unit = u + w * kUnitsInWord + i;
            S::store(panel + (unit % 2 * half + unit / 2) * kBlock + j, A::unit(word[w], i));
          }
      }
    for (int32_t r = first; r < end; r += kRowTile)
      with_rows<kRowTile>(min_of(kRowTile, end - r), [&](auto n) {
        const int32_t seen = seen_by(t, r, r + n(), keys).to;
        for (int32_t j = 0; j < seen; j += kVectorTile * W) score_tile<n()>(t, r, panel, j);
      });
  }

  template <int Rows>
  [[gnu::noinline]] static void score_tile(TileState& t, int32_t first, const float* panel, int32_t j) {
    const int32_t units = A::units(t.key_dim), half = units / 2;
    const float* q = reinterpret_cast<const float*>(t.q) + first * units;
    float* s = t.s + first * kBlock + j;
    chain<Rows>(q, units, panel + j, half, [&](int r, int v, F sum) { S::store(s + r * kBlock + v * W, sum); });
    chain<Rows>(q + half, units, panel + half * kBlock + j, half, [&](int r, int v, F sum) {
      S::store(s + r * kBlock + v * W, S::add(S::load(s + r * kBlock + v * W), sum));
    });
  }

  // put(r, v, sum of q[r][k] * panel[k][v] over k < count)
  template <int Rows, class Put>
  [[gnu::always_inline]] static void chain(const float* q, int32_t stride, const float* panel, int32_t count, Put put) {
    F sum[Rows][kVectorTile];  // in registers: all loops over it are unrolled
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectorTile; ++v) sum[r][v] = S::zero();
    for (int32_t k = 0; k < count; ++k) {
      F key[kVectorTile];
      for (int v = 0; v < kVectorTile; ++v) key[v] = S::load(panel + k * kBlock + v * W);
      for (int r = 0; r < Rows; ++r) {
        const F x = S::set1(q[r * stride + k]);
        for (int v = 0; v < kVectorTile; ++v) sum[r][v] = A::add_product(x, key[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectorTile; ++v) put(r, v, sum[r][v]);
  }

  static void accumulate_few(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t offset,
                             Prefetch& next) {
    accumulate(t, first, end, keys, [&](int32_t step, int32_t i) {
      if (i * kKeysInStep * size_of(A::kType) % 64 == 0) next.fetch(1);
      return A::values(keys.value + step * kKeysInStep, offset, i);
    });
  }

  static void accumulate_many(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t offset,
                              Prefetch& next) {
    float* panel = reinterpret_cast<float*>(t.values);  // [steps, value dim]
    for (int32_t step = keys.begin / kKeysInStep; step * kKeysInStep < keys.end; ++step) {
      for (int32_t i = 0; i < t.value_dim; i += W)
        S::store(panel + step * t.value_dim + i, A::values(keys.value + step * kKeysInStep, offset, i));
      next.fetch(kKeysInStep * t.value_dim * size_of(A::kType) / 64);
    }
    accumulate(t, first, end, keys, [&](int32_t step, int32_t i) { return S::load(panel + step * t.value_dim + i); });
  }

  // o := factor * o + p V over the keys that some row of the register tile sees; for the others p is 0.
  template <class Load>
  static void accumulate(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, Load load) {
    for (int32_t r = first; r < end; r += kRowTile)
      with_rows<kRowTile>(min_of(kRowTile, end - r), [&](auto n) {
        const Seen seen = seen_by(t, r, r + n(), keys);
        if (seen.from >= seen.to) return;
        const Steps steps{seen.from / kKeysInStep, (seen.to + kKeysInStep - 1) / kKeysInStep};
        int32_t i = 0;
        for (; i + kVectorTile * W <= t.value_dim; i += kVectorTile * W)
          accumulate_tile<n(), kVectorTile>(t, r, i, steps, load);
        for (; i < t.value_dim; i += W) accumulate_tile<n(), 1>(t, r, i, steps, load);
      });
  }

  struct Steps {
    int32_t begin;
    int32_t end;
  };

  template <int Rows, int Vectors, class Load>
  [[gnu::noinline]] static void accumulate_tile(TileState& t, int32_t first, int32_t i, Steps steps, Load load) {
    F sum[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const float factor = t.factor[first + r];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v)
        sum[r][v] =
            factor == 0.0f ? S::zero() : S::mul(S::load(t.o + (first + r) * t.value_dim + i + v * W), S::set1(factor));
    }
    for (int32_t step = steps.begin; step < steps.end; ++step) {
      F value[Vectors];
      for (int v = 0; v < Vectors; ++v) value[v] = load(step, i + v * W);
      for (int r = 0; r < Rows; ++r) {
        const F p = S::set1(t.s[(first + r) * kBlock + step]);
        for (int v = 0; v < Vectors; ++v) sum[r][v] = A::add_product(p, value[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) S::store(t.o + (first + r) * t.value_dim + i + v * W, sum[r][v]);
  }
};

template <class S>
Kernel widened_kernel(Dtype kv_type) {
  switch (kv_type) {
    case Dtype::f32:
      return {run_item<VectorEngine<WidenedProducts<S, Dtype::f32>>>, combine_sequence<S>};
    case Dtype::bf16:
      return {run_item<VectorEngine<WidenedProducts<S, Dtype::bf16>>>, combine_sequence<S>};
    case Dtype::f16:
      return {run_item<VectorEngine<WidenedProducts<S, Dtype::f16>>>, combine_sequence<S>};
    case Dtype::f8e4m3:
      break;
  }
  return {run_item<VectorEngine<WidenedProducts<S, Dtype::f8e4m3>>>, combine_sequence<S>};
}

}  // namespace
}  // namespace quire::attn::cpu
