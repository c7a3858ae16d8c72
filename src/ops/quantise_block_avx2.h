// One block of 32 activations in 8 bits, from registers. Include only from sources compiled for AVX2.
#pragma once
#include <immintrin.h>

#include <bit>
#include <cstdint>

namespace quire::ops::avx2 {
namespace {  // compiled with special flags: the linker must not keep one copy for all

// The bits of the largest magnitude. As integers magnitudes have the order of their values, infinity is above all
// numbers and NaN above infinity: the largest alone tells whether the block is sound.
inline uint32_t largest_magnitude(const __m256 (&x)[4]) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const auto of = [&](int i) { return _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude); };
  const __m256i most = _mm256_max_epi32(_mm256_max_epi32(of(0), of(1)), _mm256_max_epi32(of(2), of(3)));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// x * inverse as 32 bytes in the order of x.
inline __m256i rounded_bytes(const __m256 (&x)[4], float inverse) {
  const __m256 factor = _mm256_set1_ps(inverse);
  const auto rounded = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(x[i], factor)); };
  const __m256i low = _mm256_packs_epi32(rounded(0), rounded(1)), high = _mm256_packs_epi32(rounded(2), rounded(3));
  // Packing works inside 128-bit halves; this puts the groups of four bytes back in order.
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Sums of the low and of the high 16 bytes: bytes made unsigned by adding 128, summed by eights, 128 taken off again.
inline void store_sums(__m256i q, int32_t* sums) {
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i both = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0x4e));
  sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(both)) - 16 * 128;
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(both, 1)) - 16 * 128;
}

inline void quantise_block(const __m256 (&x)[4], int8_t* q, float* scale, int32_t* sums) {
  constexpr uint32_t kLeast = std::bit_cast<uint32_t>(0x1p-119f), kInfinity = 0x7f800000u, kNan = 0x7fc00000u;
  const uint32_t bits = largest_magnitude(x);
  if (bits < kLeast || bits >= kInfinity) [[unlikely]] {
    *scale = bits < kLeast ? 0.0f : std::bit_cast<float>(kNan);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_setzero_si256());
    sums[0] = sums[1] = 0;
    return;
  }
  const auto largest = std::bit_cast<float>(bits);
  *scale = largest / 127.0f;
  const __m256i bytes = rounded_bytes(x, 127.0f / largest);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  store_sums(bytes, sums);
}

}  // namespace
}  // namespace quire::ops::avx2
