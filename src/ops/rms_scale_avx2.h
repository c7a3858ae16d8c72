// rms_scale_ref.h's factor in AVX2: the 16 lanes are two registers. Include only from sources compiled for AVX2, FMA.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "base/simd/avx2.h"

namespace quire::ops::avx2 {
namespace {  // compiled with special flags: the linker must not keep one copy for all

// The last dim % 16 squares go to the lanes they belong to; the other lanes stay as they are.
inline void add_last_squares(const float* x, int64_t count, __m256& low, __m256& high) {
  alignas(32) float rest[16] = {};
  for (int64_t i = 0; i < count; ++i) rest[i] = x[i];
  const __m256 a = _mm256_load_ps(rest), b = _mm256_load_ps(rest + 8);
  low = _mm256_fmadd_ps(a, a, low);
  high = _mm256_fmadd_ps(b, b, high);
}

inline float rms_scale(const float* x, int64_t dim, float eps) {
  __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  if (i < dim) add_last_squares(x + i, dim - i, low, high);
  const float sum = simd::Avx2::reduce_add(_mm256_add_ps(low, high));  // folds by halves
  return 1.0f / std::sqrt(sum / static_cast<float>(dim) + eps);
}

}  // namespace
}  // namespace quire::ops::avx2
