// Eight floats at a time. Include only from sources compiled for AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>

#include <cstddef>

#include "base/types.h"

namespace quire::simd {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

struct Avx2 {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kRegisters = 16;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  static F max(F a, F b) { return _mm256_max_ps(a, b); }              // b where either is NaN
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // p * 2^whole, or 0 where x < -126.
  static F times_power_of_two(F p, F whole, F x) {
    const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);
    const F product = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ), product);
  }
  // y where it exceeds x by more than slack, else x.
  static F raised(F x, F y, float slack) {
    return _mm256_blendv_ps(x, y, _mm256_cmp_ps(y, _mm256_add_ps(x, _mm256_set1_ps(slack)), _CMP_GT_OQ));
  }
  static F zero_if_empty(F x) {  // -inf becomes 0
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-__builtin_inff()), _CMP_EQ_OQ), x);
  }
  // Lane i keeps x if low <= first + i < high, else it becomes `other`.
  static F keep_between(F x, int first, int low, int high, F other) {
    const __m256i lane = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i keep = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane),
                                             _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(keep));
  }
  // Lane i: the greatest lane of rows[i], which is used up.
  [[gnu::always_inline]] static F max_of_rows(F (&rows)[8]) {
    for (int i = 0; i < 4; ++i)  // one half each of rows i and i + 4
      rows[i] =
          max(_mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20), _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31));
    const __m256d a = _mm256_castps_pd(max(_mm256_unpacklo_ps(rows[0], rows[1]), _mm256_unpackhi_ps(rows[0], rows[1])));
    const __m256d b = _mm256_castps_pd(max(_mm256_unpacklo_ps(rows[2], rows[3]), _mm256_unpackhi_ps(rows[2], rows[3])));
    return max(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  }
  static float reduce_add(F x) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
  }
  static float first(F x) { return _mm256_cvtss_f32(x); }

  template <Dtype T>
  static F load_as(const std::byte* p) {
    if constexpr (T == Dtype::f32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    } else if constexpr (T == Dtype::bf16) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    } else if constexpr (T == Dtype::f16) {
      return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    } else {
      return widen_f8(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
  }

  template <Dtype T>
  static void store_as(std::byte* p, F x) {
    static_assert(T != Dtype::f8e4m3, "results are not written in 8 bits");
    if constexpr (T == Dtype::f32) {
      _mm256_storeu_ps(reinterpret_cast<float*>(p), x);
    } else if constexpr (T == Dtype::f16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    } else {
      const __m256i bits = _mm256_castps_si256(x);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
      const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
      const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
      const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
    }
  }

  // words[i] := 32-bit word i of each of the 8 rows at rows[...] + offset, for i < count; count is 8 or less.
  using Words = __m256i;
  [[gnu::always_inline]] static void load_words(Words (&words)[8], const std::byte* const* rows, int64_t offset,
                                                int count) {
    const __m256i present = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    for (int i = 0; i < 8; ++i)
      words[i] = _mm256_maskload_epi32(reinterpret_cast<const int*>(rows[i] + offset), present);
    transpose(words);
  }

  // Element `i` of each word, widened; a word holds 4 / size_of(T) of them.
  template <Dtype T>
  [[gnu::always_inline]] static F element(Words x, int i) {
    if constexpr (T == Dtype::f32) {
      return _mm256_castsi256_ps(x);
    } else if constexpr (T == Dtype::bf16) {
      return _mm256_castsi256_ps(i == 0 ? _mm256_slli_epi32(x, 16)
                                        : _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    } else if constexpr (T == Dtype::f16) {
      const __m256i half = i == 0 ? _mm256_and_si256(x, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32(x, 16);
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 0x08);
      return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    } else {
      return widen_f8(_mm256_srl_epi32(x, _mm_cvtsi32_si128(8 * i)));
    }
  }

  // The low byte of each word as e4m3: exponent and mantissa moved into f32's places, then times 2^(127 - 7).
  static F widen_f8(__m256i x) {
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x80)), 24);
    const F value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120f));
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    return _mm256_castsi256_ps(
        _mm256_blendv_epi8(_mm256_or_si256(_mm256_castps_si256(value), sign), _mm256_set1_epi32(0x7fc00000), nan));
  }

  // x[i] lane j becomes x[j] lane i.
  [[gnu::always_inline]] static void transpose(Words (&x)[8]) {
    for (int i = 0; i < 4; ++i) {  // halves first
      const __m256i a = _mm256_permute2x128_si256(x[i], x[i + 4], 0x20);
      x[i + 4] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x31);
      x[i] = a;
    }
    for (int i = 0; i < 8; i += 4) {  // then 4 x 4 words inside the halves
      const __m256i a = _mm256_unpacklo_epi32(x[i], x[i + 1]), b = _mm256_unpackhi_epi32(x[i], x[i + 1]);
      const __m256i c = _mm256_unpacklo_epi32(x[i + 2], x[i + 3]), d = _mm256_unpackhi_epi32(x[i + 2], x[i + 3]);
      x[i] = _mm256_unpacklo_epi64(a, c);
      x[i + 1] = _mm256_unpackhi_epi64(a, c);
      x[i + 2] = _mm256_unpacklo_epi64(b, d);
      x[i + 3] = _mm256_unpackhi_epi64(b, d);
    }
  }
};

}  // namespace
}  // namespace quire::simd
