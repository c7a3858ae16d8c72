// The integers of AVX2, eight columns at a time. Include only from sources compiled for AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "base/simd/avx2.h"

namespace quire::ops::cpu {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

struct Avx2Integers {
  using Simd = simd::Avx2;
  using I = __m256i;
  using F = Simd::F;

  static I zero() { return _mm256_setzero_si256(); }
  static I load(const std::byte* line) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(line)); }
  static I broadcast(const void* word) {
    int32_t bits;
    std::memcpy(&bits, word, sizeof(bits));
    return _mm256_set1_epi32(bits);
  }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  static F widen_u8(const std::byte* from) {
    return to_float(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static F widen_i8(const std::byte* from) {
    return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }

  // Every byte moved right by Right bits, of which Mask is kept.
  template <int Mask, int Right>
  static I bits(I x) {
    return _mm256_and_si256(moved<Right>(x), _mm256_set1_epi8(static_cast<char>(Mask)));
  }
  // to | bits<Mask, Right>(x)
  template <int Mask, int Right>
  static I with_bits(I to, I x) {
    return _mm256_or_si256(to, bits<Mask, Right>(x));
  }

 private:
  template <int Right>
  static I moved(I x) {
    return Right == 0 ? x : _mm256_srli_epi16(x, Right);
  }
};

}  // namespace
}  // namespace quire::ops::cpu
