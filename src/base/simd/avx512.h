// Sixteen floats at a time. Include only from sources compiled for AVX-512 (F, BW, DQ, VL).
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace quire::simd {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kRegisters = 32;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  static F max(F a, F b) { return _mm512_max_ps(a, b); }              // b where either is NaN
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // p * 2^whole, or 0 where x < -126.
  static F times_power_of_two(F p, F whole, F x) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p, whole);
  }
  // y where it exceeds x by more than slack, else x.
  static F raised(F x, F y, float slack) {
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(y, _mm512_add_ps(x, _mm512_set1_ps(slack)), _CMP_GT_OQ), y);
  }
  static F zero_if_empty(F x) {  // -inf becomes 0
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ),
                              _mm512_setzero_ps());
  }
  // Lane i keeps x if low <= first + i < high, else it becomes `other`.
  static F keep_between(F x, int first, int low, int high, F other) {
    const __m512i lane = _mm512_add_epi32(_mm512_set1_epi32(first),
                                          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __mmask16 keep = _mm512_cmp_epi32_mask(lane, _mm512_set1_epi32(low), _MM_CMPINT_NLT) &
                           _mm512_cmp_epi32_mask(lane, _mm512_set1_epi32(high), _MM_CMPINT_LT);
    return _mm512_mask_mov_ps(other, keep, x);
  }
  // Lane i: the greatest lane of rows[i], which is used up.
  [[gnu::always_inline]] static F max_of_rows(F (&rows)[16]) {
    for (int i = 0; i < 4; ++i)
      for (int half : {i, i + 8})  // two 128-bit lanes each of rows `half` and `half` + 4
        rows[half] = max(_mm512_shuffle_f32x4(rows[half], rows[half + 4], 0x44),
                         _mm512_shuffle_f32x4(rows[half], rows[half + 4], 0xee));
    for (int i = 0; i < 4; ++i)  // one lane each of rows i, i + 4, i + 8, i + 12
      rows[i] = max(_mm512_shuffle_f32x4(rows[i], rows[i + 8], 0x88), _mm512_shuffle_f32x4(rows[i], rows[i + 8], 0xdd));
    const __m512d a = _mm512_castps_pd(max(_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[0], rows[1])));
    const __m512d b = _mm512_castps_pd(max(_mm512_unpacklo_ps(rows[2], rows[3]), _mm512_unpackhi_ps(rows[2], rows[3])));
    return max(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  static float reduce_add(F x) { return _mm512_reduce_add_ps(x); }
  static float first(F x) { return _mm512_cvtss_f32(x); }

  template <Dtype T>
  static F load_as(const std::byte* p) {
    if constexpr (T == Dtype::f32) {
      return _mm512_loadu_ps(p);
    } else if constexpr (T == Dtype::bf16) {
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    } else if constexpr (T == Dtype::f16) {
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    } else {
      return widen_f8(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
  }

  template <Dtype T>
  static void store_as(std::byte* p, F x) {
    static_assert(T != Dtype::f8e4m3, "results are not written in 8 bits");
    if constexpr (T == Dtype::f32) {
      _mm512_storeu_ps(p, x);
    } else if constexpr (T == Dtype::f16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(x));
    }
  }

  // Nearest even by integer arithmetic; NaN is kept quiet.
  static __m256i round_to_bf16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000)), 16));
  }

  // words[i] := 32-bit word i of each of the 16 rows at rows[...] + offset, for i < count; count is 16 or less.
  using Words = __m512i;
  [[gnu::always_inline]] static void load_words(Words (&words)[16], const std::byte* const* rows, int64_t offset,
                                                int count) {
    if (count == 16) {
      for (int i = 0; i < 16; ++i) words[i] = _mm512_loadu_si512(rows[i] + offset);
    } else {
      const __mmask16 present = static_cast<__mmask16>((1u << count) - 1);
      for (int i = 0; i < 16; ++i) words[i] = _mm512_maskz_loadu_epi32(present, rows[i] + offset);
    }
    transpose(words);
  }

  // Element `i` of each word, widened; a word holds 4 / size_of(T) of them.
  template <Dtype T>
  [[gnu::always_inline]] static F element(Words x, int i) {
    if constexpr (T == Dtype::f32) {
      return _mm512_castsi512_ps(x);
    } else if constexpr (T == Dtype::bf16) {
      return _mm512_castsi512_ps(i == 0 ? _mm512_slli_epi32(x, 16)
                                        : _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    } else if constexpr (T == Dtype::f16) {
      return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(i == 0 ? x : _mm512_srli_epi32(x, 16)));
    } else {
      return widen_f8(_mm512_srl_epi32(x, _mm_cvtsi32_si128(8 * i)));
    }
  }

  // The low byte of each word as e4m3: exponent and mantissa moved into f32's places, then times 2^(127 - 7).
  static F widen_f8(__m512i x) {
    const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x80)), 24);
    const F value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)), _mm512_set1_ps(0x1p120f));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(_mm512_or_si512(_mm512_castps_si512(value), sign), nan, _mm512_set1_epi32(0x7fc00000)));
  }

  // x[i] lane j becomes x[j] lane i.
  [[gnu::always_inline]] static void transpose(Words (&x)[16]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // 4 x 4 blocks of lanes, so that only four rows are open at a time
      const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x44), b = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xee);
      const __m512i c = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x44),
                    d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xee);
      x[i] = _mm512_shuffle_i32x4(a, c, 0x88);
      x[i + 4] = _mm512_shuffle_i32x4(a, c, 0xdd);
      x[i + 8] = _mm512_shuffle_i32x4(b, d, 0x88);
      x[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {  // then 4 x 4 words inside the lanes
      const __m512i a = _mm512_unpacklo_epi32(x[i], x[i + 1]), b = _mm512_unpackhi_epi32(x[i], x[i + 1]);
      const __m512i c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]), d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
      x[i] = _mm512_unpacklo_epi64(a, c);
      x[i + 1] = _mm512_unpackhi_epi64(a, c);
      x[i + 2] = _mm512_unpacklo_epi64(b, d);
      x[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
  }
};

}  // namespace
}  // namespace quire::simd
