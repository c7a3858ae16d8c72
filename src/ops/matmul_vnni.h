// The integers of AVX-512 with VNNI, sixteen columns at a time. Include only from sources compiled for both.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "base/simd/avx512.h"

namespace quire::ops::cpu {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

struct Vnni {
  using Simd = simd::Avx512;
  using I = __m512i;
  using F = Simd::F;
  static constexpr int kRows = 8;

  static I zero() { return _mm512_setzero_si512(); }
  static I load(const std::byte* line) { return _mm512_load_si512(line); }
  static I broadcast(const void* word) {
    int32_t bits;
    std::memcpy(&bits, word, sizeof(bits));
    return _mm512_set1_epi32(bits);
  }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static F negated(F x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
  static F widen_u8(const std::byte* from) {
    return to_float(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static F widen_i8(const std::byte* from) {
    return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }

  // Every byte moved left by Left bits (right when negative), of which Mask is kept.
  template <int Mask, int Left>
  static I bits(I x) {
    return _mm512_and_si512(moved<Left>(x), _mm512_set1_epi8(Mask));
  }
  // to | bits<Mask, Left>(x)
  template <int Mask, int Left>
  static I with_bits(I to, I x) {
    constexpr int kFirstOrBothOthers = 0xf8;
    return _mm512_ternarylogic_epi32(to, moved<Left>(x), _mm512_set1_epi8(Mask), kFirstOrBothOthers);
  }

  template <bool FullBytes>
  static I dot(I sums, I weights, I activations) {
    return _mm512_dpbusd_epi32(sums, weights, activations);
  }

 private:
  template <int Left>
  static I moved(I x) {
    if constexpr (Left > 0) return _mm512_slli_epi16(x, Left);
    if constexpr (Left < 0) return _mm512_srli_epi16(x, -Left);
    return x;
  }
};

}  // namespace
}  // namespace quire::ops::cpu
