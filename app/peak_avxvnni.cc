#include "peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace quire::bench {

double bytes_avxvnni(int64_t rounds) {
  constexpr int kSums = 12;
  const __m256i factor = _mm256_set1_epi8(1);
  __m256i sums[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_epi32(i);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = _mm256_dpbusd_avx_epi32(sums[i], factor, factor);
  }
  // One by one: an array whose address is used would be stored in every round.
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) asm volatile("" : : "x"(sums[i]));
  return 8.0 * 8 * kSums * static_cast<double>(rounds);
}

}  // namespace quire::bench

#else
namespace quire::bench {
double bytes_avxvnni(int64_t) { return 0; }
}  // namespace quire::bench
#endif
