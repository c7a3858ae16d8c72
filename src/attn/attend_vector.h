// One block in f32 products of widened elements, for any SIMD type and any element type of keys and values.
//
//   score(row, key)    a chain of fused products over the even dimensions plus one over the odd ones, ascending
//   out(row, dim)      one chain over the keys, ascending
//
// So a row's bits do not depend on which rows are computed beside it. Few rows (decode) read keys and values straight from
// their pages; many rows share a block that is widened, and for keys transposed, once.
// Internal linkage for the reason attend_walk.h gives.
#pragma once
#include "attn/attend_softmax.h"

namespace quire::attn::cpu {
namespace {

template <class SimdType, Dtype T>
struct VectorEngine {
  using S = SimdType;
  using Simd = SimdType;
  using F = typename S::F;
  static constexpr int W = S::kWidth;
  static constexpr int kRowTile = S::kRegisters == 32 ? 6 : 4;   // rows in registers
  static constexpr int kVectorTile = S::kRegisters == 32 ? 4 : 2;  // vectors of keys or dims in registers
  static constexpr int kFewRows = 4;                               // at most: no block is packed
  static constexpr int kInWord = 4 / size_of(T);                   // elements in 32 bits

  // Even dimensions first, then the odd ones: the order of the two chains.
  static void load_queries(const Task& task, const Item& item, TileState& t) {
    const int32_t half = t.key_dim / 2;
    for (int32_t r = 0; r < t.rows; ++r) {
      const RowPlace place = place_of(task, item, r);
      const std::byte* from = task.args.q.at(place.query, place.head);
      float* natural = t.s;  // not in use yet; a row of queries fits in it
      switch (task.args.q.type) {
        case Dtype::f32: widen<Dtype::f32>(from, natural, t.key_dim); break;
        case Dtype::bf16: widen<Dtype::bf16>(from, natural, t.key_dim); break;
        default: widen<Dtype::f16>(from, natural, t.key_dim); break;
      }
      float* q = reinterpret_cast<float*>(t.q) + r * t.key_dim;
      for (int32_t i = 0; i < half; ++i) {
        q[i] = natural[2 * i];
        q[half + i] = natural[2 * i + 1];
      }
    }
  }

  static void block(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t key_offset,
                    int64_t value_offset, Ahead& next_keys, Ahead& next_values) {
    const bool few = end - first <= kFewRows;
    if (few)
      with_rows<kFewRows>(end - first, [&](auto n) { score_few<n()>(t, first, keys, key_offset, next_keys); });
    else
      score_many(t, first, end, keys, key_offset, next_keys);
    softmax_rows<S>(t, first, end, keys, [&](int32_t r, int i, F p) { S::store(t.s + r * kBlock + i, p); });
    if (few)
      weigh_few(t, first, end, keys, value_offset, next_values);
    else
      weigh_many(t, first, end, keys, value_offset, next_values);
  }

 private:
  template <Dtype From>
  static void widen(const std::byte* from, float* to, int32_t count) {
    for (int32_t i = 0; i < count; i += W) S::store(to + i, S::template load_as<From>(from + i * size_of(From)));
  }

  // Calls body(integral constant n) for n in [1, Most].
  template <int Most, class Body>
  static void with_rows(int32_t n, Body body) {
    if constexpr (Most > 1) {
      if (n < Most) return with_rows<Most - 1>(n, body);
    }
    body(std::integral_constant<int, Most>{});
  }

  // W keys straight from their pages, a cache line of each (or W words of it) at a time.
  template <int Rows>
  [[gnu::noinline]] static void score_few(TileState& t, int32_t first, const BlockKeys& keys, int64_t offset, Ahead& next) {
    const int32_t half = t.key_dim / 2;
    const float* q = reinterpret_cast<const float*>(t.q) + first * t.key_dim;
    for (int32_t j = 0; j < kBlock; j += W) {
      if (j >= keys.end || j + W <= keys.begin) continue;  // masked, whatever stands in s
      F sum[2][Rows];
      for (int r = 0; r < Rows; ++r) sum[0][r] = sum[1][r] = S::zero();
      for (int32_t k = 0; k < t.key_dim; k += W * kInWord) {
        const int32_t words = min_of(W, (t.key_dim - k) / kInWord);
        typename S::Words word[W];
        S::load_words(word, keys.key + j, offset + k * size_of(T), words);
        next.fetch(W * W * 4 / 64);  // as many lines as were read
        // The loop below is unrolled, so that a dimension's parity, and with it its chain, is known to the compiler.
        const auto add_word = [&](int w) [[gnu::always_inline]] {
#pragma GCC unroll 4
          for (int i = 0; i < kInWord; ++i) {
            const int in_step = w * kInWord + i;
            const F column = S::template element<T>(word[w], i);
            const float* x = q + in_step % 2 * half + k / 2 + in_step / 2;
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r)
              sum[in_step % 2][r] = S::fma(S::set1(x[r * t.key_dim]), column, sum[in_step % 2][r]);
          }
        };
        if (words == W) {
#pragma GCC unroll 16
          for (int w = 0; w < W; ++w) add_word(w);
        } else {
          for (int w = 0; w < words; ++w) add_word(w);
        }
      }
      for (int r = 0; r < Rows; ++r) S::store(t.s + (first + r) * kBlock + j, S::add(sum[0][r], sum[1][r]));
    }
  }

  static void score_many(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t offset, Ahead& next) {
    float* panel = reinterpret_cast<float*>(t.keys);  // [key dim, kBlock]: even dimensions, then odd ones
    const int32_t half = t.key_dim / 2;
    for (int32_t j = 0; j < kBlock; j += W)
      for (int32_t k = 0; k < t.key_dim; k += W * kInWord) {
        const int32_t words = min_of(W, (t.key_dim - k) / kInWord);
        typename S::Words word[W];
        S::load_words(word, keys.key + j, offset + k * size_of(T), words);
        next.fetch(W * W * 4 / 64);  // as many lines as were read
        for (int w = 0; w < words; ++w)
          for (int i = 0; i < kInWord; ++i) {
            const int32_t dim = k + w * kInWord + i;
            S::store(panel + (dim % 2 * half + dim / 2) * kBlock + j, S::template element<T>(word[w], i));
          }
      }
    for (int32_t r = first; r < end; r += kRowTile)
      with_rows<kRowTile>(min_of(kRowTile, end - r), [&](auto n) {
        const int32_t seen = min_of(most_of(t.high, r, n()) - keys.position, keys.end);
        for (int32_t j = 0; j < seen; j += kVectorTile * W) score_tile<n()>(t, r, panel, j);
      });
  }

  template <int Rows>
  [[gnu::noinline]] static void score_tile(TileState& t, int32_t first, const float* panel, int32_t j) {
    const int32_t half = t.key_dim / 2;
    const float* q = reinterpret_cast<const float*>(t.q) + first * t.key_dim;
    float* s = t.s + first * kBlock + j;
    chain<Rows>(q, t.key_dim, panel + j, half, [&](int r, int v, F sum) { S::store(s + r * kBlock + v * W, sum); });
    chain<Rows>(q + half, t.key_dim, panel + half * kBlock + j, half, [&](int r, int v, F sum) {
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
        for (int v = 0; v < kVectorTile; ++v) sum[r][v] = S::fma(x, key[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectorTile; ++v) put(r, v, sum[r][v]);
  }

  static void weigh_few(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t offset, Ahead& next) {
    weigh(t, first, end, keys, [&](int32_t j, int32_t i) {
      if (i * size_of(T) % 64 == 0) next.fetch(1);
      return S::template load_as<T>(keys.value[j] + offset + i * size_of(T));
    });
  }

  static void weigh_many(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t offset, Ahead& next) {
    float* panel = reinterpret_cast<float*>(t.values);  // [kBlock, value dim]
    for (int32_t j = keys.begin; j < keys.end; ++j) {
      widen<T>(keys.value[j] + offset, panel + j * t.value_dim, t.value_dim);
      next.fetch(t.value_dim * size_of(T) / 64);
    }
    weigh(t, first, end, keys, [&](int32_t j, int32_t i) { return S::load(panel + j * t.value_dim + i); });
  }

  // o := factor * o + p V over the keys that some row of the register tile sees; for the others p is 0.
  template <class Load>
  static void weigh(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, Load load) {
    for (int32_t r = first; r < end; r += kRowTile)
      with_rows<kRowTile>(min_of(kRowTile, end - r), [&](auto n) {
        const int32_t from = max_of(least_of(t.low, r, n()) - keys.position, keys.begin);
        const int32_t to = min_of(most_of(t.high, r, n()) - keys.position, keys.end);
        if (from >= to) return;
        int32_t i = 0;
        for (; i + kVectorTile * W <= t.value_dim; i += kVectorTile * W) weigh_tile<n(), kVectorTile>(t, r, i, from, to, load);
        for (; i < t.value_dim; i += W) weigh_tile<n(), 1>(t, r, i, from, to, load);
      });
  }

  template <int Rows, int Vectors, class Load>
  [[gnu::noinline]] static void weigh_tile(TileState& t, int32_t first, int32_t i, int32_t from, int32_t to, Load load) {
    F sum[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const F factor = S::set1(t.factor[first + r]);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v)
        sum[r][v] = S::mul(S::load(t.o + (first + r) * t.value_dim + i + v * W), factor);
    }
    for (int32_t j = from; j < to; ++j) {
      F value[Vectors];
      for (int v = 0; v < Vectors; ++v) value[v] = load(j, i + v * W);
      for (int r = 0; r < Rows; ++r) {
        const F p = S::set1(t.s[(first + r) * kBlock + j]);
        for (int v = 0; v < Vectors; ++v) sum[r][v] = S::fma(p, value[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) S::store(t.o + (first + r) * t.value_dim + i + v * W, sum[r][v]);
  }

  static int32_t most_of(const int32_t* values, int32_t first, int32_t count) {
    int32_t most = values[first];
    for (int32_t i = 1; i < count; ++i) most = max_of(most, values[first + i]);
    return most;
  }
  static int32_t least_of(const int32_t* values, int32_t first, int32_t count) {
    int32_t least = values[first];
    for (int32_t i = 1; i < count; ++i) least = min_of(least, values[first + i]);
    return least;
  }
};

template <class S>
Kernel vector_kernel(Dtype kv_type) {
  switch (kv_type) {
    case Dtype::f32: return {run_item<VectorEngine<S, Dtype::f32>>, fold_parts<S>};
    case Dtype::bf16: return {run_item<VectorEngine<S, Dtype::bf16>>, fold_parts<S>};
    case Dtype::f16: return {run_item<VectorEngine<S, Dtype::f16>>, fold_parts<S>};
    case Dtype::f8e4m3: break;
  }
  return {run_item<VectorEngine<S, Dtype::f8e4m3>>, fold_parts<S>};
}

}  // namespace
}  // namespace quire::attn::cpu
