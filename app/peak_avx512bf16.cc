#include "peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

namespace quire::bench {

double products_avx512bf16(int64_t rounds) {
  constexpr int kSums = 24;
  const __m512i half = _mm512_set1_epi16(0x3f00);  // 0.5 in bf16
  __m512bh factor;
  std::memcpy(&factor, &half, sizeof(factor));
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  }
  asm volatile("" : : "r"(sums) : "memory");
  return 4.0 * 16 * kSums * static_cast<double>(rounds);
}

}  // namespace quire::bench

#else
namespace quire::bench {
double products_avx512bf16(int64_t) { return 0; }
}  // namespace quire::bench
#endif
