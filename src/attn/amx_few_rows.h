// A block of few rows (decode) on vectors, with the arithmetic of the tile unit, bit for bit.
//
// A tile product of 32 k is two chains of fused products, over the even and the odd k, whose sum is added to the
// accumulator; denormal numbers count as zero. Vectors can do the same sums straight from the pages, where tiles would
// first have a whole block repacked for 4 of their 16 rows. So decode is faster and its bits are those of prefill.
// Internal linkage for the reason attend_walk.h gives; include only from sources compiled for AVX-512 and its bf16
// instructions.
#pragma once
#include <immintrin.h>

#include "attn/attend_softmax.h"
#include "base/simd/avx512.h"

namespace quire::attn::cpu {
namespace {

// Denormals are zeros while this lives.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
  unsigned before_;
};

struct AmxFewRows {
  using S = simd::Avx512;
  using F = S::F;
  static constexpr int kMost = 4;
  static constexpr int kDepth = 32;  // k of one tile product

  static void block(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t key_offset,
                    int64_t value_offset, Prefetch& next_keys, Prefetch& next_values) {
    with_rows<kMost>(end - first, [&](auto n) {
      score<n()>(t, first, keys, key_offset, next_keys);
      softmax_rows<S>(t, first, end, keys,
                      [&](int32_t row, int i, F p) { S::store(t.s + row * kBlock + i, rounded(p)); });
      accumulate<n()>(t, first, keys, value_offset, next_values);
    });
  }

 private:
  static F even(__m512i pairs) { return S::element<Dtype::bf16>(pairs, 0); }
  static F odd(__m512i pairs) { return S::element<Dtype::bf16>(pairs, 1); }

  static F rounded(F p) {
    const __m256bh narrow = _mm512_cvtneps_pbh(p);
    __m256i bits;
    std::memcpy(&bits, &narrow, sizeof(bits));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  // The rows' queries as floats; they lie where a packed block of keys would.
  static const float* widened_queries(TileState& t, int32_t first, int32_t rows) {
    float* out = reinterpret_cast<float*>(t.keys);
    const std::byte* in = t.q + first * t.key_dim * int64_t{sizeof(bf16)};
    for (int32_t i = 0; i < rows * t.key_dim; i += S::kWidth)
      S::store(out + i, S::load_as<Dtype::bf16>(in + i * int64_t{sizeof(bf16)}));
    return out;
  }

  template <int Rows>
  [[gnu::noinline]] static void score(TileState& t, int32_t first, const BlockKeys& keys, int64_t offset,
                                      Prefetch& next) {
    const float* q = widened_queries(t, first, Rows);
    for (int32_t j = 0; j < kBlock; j += 16) {
      if (j >= keys.end || j + 16 <= keys.begin) continue;  // masked, whatever stands in s
      F sum[Rows];
      for (F& x : sum) x = S::zero();
      for (int32_t k = 0; k < t.key_dim; k += kDepth) {
        next.fetch(16);  // as many lines as are read
        add_step<Rows>(q + k, t.key_dim, keys.key + j, offset + k * int64_t{sizeof(bf16)}, sum);
      }
      for (int r = 0; r < Rows; ++r) S::store(t.s + (first + r) * kBlock + j, sum[r]);
    }
  }

  // 32 dimensions of 16 keys.
  template <int Rows>
  [[gnu::always_inline]] static void add_step(const float* q, int32_t stride, const std::byte* const* rows,
                                              int64_t offset, F (&sum)[Rows]) {
    S::Words pairs[16];
    S::load_words(pairs, rows, offset, 16);
    F evens[Rows], odds[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) evens[r] = odds[r] = S::zero();
#pragma GCC unroll 16
    for (int w = 0; w < 16; ++w) {
      const F a = even(pairs[w]), b = odd(pairs[w]);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        evens[r] = S::fma(S::set1(q[r * stride + 2 * w]), a, evens[r]);
        odds[r] = S::fma(S::set1(q[r * stride + 2 * w + 1]), b, odds[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) sum[r] = S::add(sum[r], S::add(evens[r], odds[r]));
  }

  // o := factor * o + p V, 32 dimensions at a time: the even ones in one register, the odd ones in the next, as tiles
  // leave them too.
  template <int Rows>
  static void accumulate(TileState& t, int32_t first, const BlockKeys& keys, int64_t offset, Prefetch& next) {
    const Seen seen = seen_by(t, first, first + Rows, keys);
    if (seen.from >= seen.to) return;
    for (int32_t i = 0; i < t.value_dim; i += 32)
      accumulate_dims<Rows>(t, first, i, keys, offset + i * int64_t{sizeof(bf16)}, next);
  }

  template <int Rows>
  [[gnu::noinline]] static void accumulate_dims(TileState& t, int32_t first, int32_t i, const BlockKeys& keys,
                                                int64_t offset, Prefetch& next) {
    F sum[Rows][2];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int parity = 0; parity < 2; ++parity)
        sum[r][parity] = scaled(t.o + (first + r) * t.value_dim + i + parity * 16, t.factor[first + r]);
    for (int32_t j = 0; j < kBlock; j += kDepth) {
      F chain[2][Rows][2];  // even and odd keys
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) chain[0][r][0] = chain[0][r][1] = chain[1][r][0] = chain[1][r][1] = S::zero();
      const int32_t from = max_of(j, keys.begin), to = min_of(j + kDepth, keys.end);  // of the others p is 0
      for (int32_t key = from / 2 * 2; key < to; key += 2) {
        next.fetch(2);
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) {
          const __m512i pairs = _mm512_loadu_si512(keys.value[key + c] + offset);
          const F a = even(pairs), b = odd(pairs);
#pragma GCC unroll 4
          for (int r = 0; r < Rows; ++r) {
            const F p = S::set1(t.s[(first + r) * kBlock + key + c]);
            chain[c][r][0] = S::fma(p, a, chain[c][r][0]);
            chain[c][r][1] = S::fma(p, b, chain[c][r][1]);
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
        for (int parity = 0; parity < 2; ++parity)
          sum[r][parity] = S::add(sum[r][parity], S::add(chain[0][r][parity], chain[1][r][parity]));
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int parity = 0; parity < 2; ++parity)
        S::store(t.o + (first + r) * t.value_dim + i + parity * 16, sum[r][parity]);
  }

  // A factor of 0 makes 0 of anything, garbage included.
  static F scaled(const float* o, float factor) {
    return factor == 0.0f ? S::zero() : S::mul(S::load(o), S::set1(factor));
  }
};

}  // namespace
}  // namespace quire::attn::cpu
