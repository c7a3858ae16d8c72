#include "peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace quire::bench {

double bytes_avx512vnni(int64_t rounds) {
  constexpr int kSums = 12;
  const __m512i factor = _mm512_set1_epi8(1);
  __m512i sums[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_epi32(i);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], factor, factor);
  }
  // One by one: an array whose address is used would be stored in every round.
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) asm volatile("" : : "v"(sums[i]));
  return 8.0 * 16 * kSums * static_cast<double>(rounds);
}

}  // namespace quire::bench

#else
namespace quire::bench {
double bytes_avx512vnni(int64_t) { return 0; }
}  // namespace quire::bench
#endif
