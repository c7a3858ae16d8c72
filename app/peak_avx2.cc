#include "peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace quire::bench {

double products_avx2(int64_t rounds) {
  constexpr int kSums = 12;  // two units of latency four or five, within sixteen registers
  const __m256 factor = _mm256_set1_ps(0.5f), step = _mm256_set1_ps(1.0f);
  __m256 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, step);
  }
  asm volatile("" : : "r"(sums) : "memory");
  return 2.0 * 8 * kSums * static_cast<double>(rounds);
}

double bytes_avx2(int64_t rounds) {
  constexpr int kSums = 6;
  const __m256i factor = _mm256_set1_epi8(1);
  __m256i sums[kSums];
#pragma GCC unroll 6
  for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_epi16(static_cast<int16_t>(i));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 6
    for (int i = 0; i < kSums; ++i) {
      __m256i pairs = factor;
      asm volatile("vpmaddubsw %1, %0, %0" : "+x"(pairs) : "x"(factor));  // else it is computed once for all
      sums[i] = _mm256_add_epi16(sums[i], pairs);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kSums; ++i) asm volatile("" : : "x"(sums[i]));
  return 2.0 * 32 * kSums * static_cast<double>(rounds);
}

uint64_t read_avx2(const std::byte* data, size_t bytes) {
  constexpr size_t kSums = 8;  // 256 bytes a turn
  __m256i sums[kSums];
  for (size_t i = 0; i < kSums; ++i) sums[i] = _mm256_setzero_si256();
  for (size_t at = 0; at < bytes; at += sizeof(sums)) {
    const auto* words = reinterpret_cast<const __m256i*>(data + at);
#pragma GCC unroll 8
    for (size_t i = 0; i < kSums; ++i) sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(words + i));
  }
  for (size_t i = 1; i < kSums; ++i) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  alignas(32) uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[0]);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

}  // namespace quire::bench

#else
namespace quire::bench {
double products_avx2(int64_t) { return 0; }
double bytes_avx2(int64_t) { return 0; }
uint64_t read_avx2(const std::byte*, size_t) { return 0; }
}  // namespace quire::bench
#endif
