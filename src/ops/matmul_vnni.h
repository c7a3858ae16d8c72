// The integers of AVX-512 with VNNI, sixteen columns at a time. Include only from sources compiled for both.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "base/simd/avx512.h"
#include "ops/matmul_dots.h"
#include "ops/matmul_weights.h"

namespace quire::ops::cpu {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

struct Vnni {
  using Simd = simd::Avx512;
  using I = __m512i;
  using F = Simd::F;

  static I zero() { return _mm512_setzero_si512(); }
  static I load(const std::byte* line) { return _mm512_load_si512(line); }
  static I broadcast(const void* word) {
    int32_t bits;
    std::memcpy(&bits, word, sizeof(bits));
    return _mm512_set1_epi32(bits);
  }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static F widen_u8(const std::byte* from) {
    return to_float(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static F widen_i8(const std::byte* from) {
    return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }

  // Every byte moved right by Right bits, of which Mask is kept.
  template <int Mask, int Right>
  static I bits(I x) {
    return _mm512_and_si512(moved<Right>(x), _mm512_set1_epi8(static_cast<char>(Mask)));
  }
  // to | bits<Mask, Right>(x)
  template <int Mask, int Right>
  static I with_bits(I to, I x) {
    constexpr int kFirstOrBothOthers = 0xf8;
    return _mm512_ternarylogic_epi32(to, moved<Right>(x), _mm512_set1_epi8(Mask), kFirstOrBothOthers);
  }

  static constexpr bool kStartsInPairs = false;
  static constexpr int kTogether = 4;

  template <WeightForm, int First, int Count, int R>
  [[gnu::always_inline]] static void add_dots(const I (&numbers)[8], const int8_t* q, int64_t stride, I (&sums)[R]) {
    add_dots_of_four<Vnni, First, Count>(numbers, q, stride, sums);
  }

  // _mm512_dpbusd_epi32 with a broadcast: GCC 12 would load that apart, which takes a quarter longer.
  [[gnu::always_inline]] static void add_dot(I& sums, I numbers, const int8_t* q) {
    const auto& word = *reinterpret_cast<const int8_t(*)[4]>(q);
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(numbers), "m"(word));
  }

 private:
  template <int Right>
  static I moved(I x) {
    return Right == 0 ? x : _mm512_srli_epi16(x, Right);
  }
};

}  // namespace
}  // namespace quire::ops::cpu
