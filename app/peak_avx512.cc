#include "peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace quire::bench {

double products_avx512(int64_t rounds) {
  constexpr int kSums = 24;
  const __m512 factor = _mm512_set1_ps(0.5f), step = _mm512_set1_ps(1.0f);
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, step);
  }
  asm volatile("" : : "r"(sums) : "memory");
  return 2.0 * 16 * kSums * static_cast<double>(rounds);
}

uint64_t read_avx512(const std::byte* data, size_t bytes) {
  constexpr size_t kSums = 8;  // 512 bytes a turn
  __m512i sums[kSums];
  for (size_t i = 0; i < kSums; ++i) sums[i] = _mm512_setzero_si512();
  for (size_t at = 0; at < bytes; at += sizeof(sums)) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kSums; ++i)
      sums[i] = _mm512_add_epi64(sums[i], _mm512_load_si512(data + at + i * sizeof(__m512i)));
  }
  for (size_t i = 1; i < kSums; ++i) sums[0] = _mm512_add_epi64(sums[0], sums[i]);
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, sums[0]);
  uint64_t total = 0;
  for (uint64_t lane : lanes) total += lane;
  return total;
}

}  // namespace quire::bench

#else
namespace quire::bench {
double products_avx512(int64_t) { return 0; }
uint64_t read_avx512(const std::byte*, size_t) { return 0; }
}  // namespace quire::bench
#endif
