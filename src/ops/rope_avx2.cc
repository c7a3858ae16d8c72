#include "ops/rms_scale_avx2.h"
#include "ops/row_kernels.h"

namespace quire::ops {
namespace {

void norm_head(float* x, const HeadsOfToken& heads) {
  const float scale = avx2::rms_scale(x, heads.dim, heads.eps);
  const __m256 factor = _mm256_set1_ps(scale);
  int32_t i = 0;
  for (; i + 8 <= heads.dim; i += 8)
    _mm256_storeu_ps(x + i,
                     _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _mm256_loadu_ps(heads.norm + i)));
  for (; i < heads.dim; ++i) x[i] = (x[i] * scale) * heads.norm[i];
}

void rotate_pair(float& first, float& second, float cos, float sin) {
  const float a = first, b = second;
  first = a * cos - b * sin;
  second = b * cos + a * sin;
}

void rotate_halves(float* x, const HeadsOfToken& heads) {
  float* y = x + heads.half;
  int32_t i = 0;
  for (; i + 8 <= heads.half; i += 8) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(y + i);
    const __m256 cos = _mm256_loadu_ps(heads.cos + i), sin = _mm256_loadu_ps(heads.sin + i);
    _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, cos), _mm256_mul_ps(b, sin)));
    _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_mul_ps(b, cos), _mm256_mul_ps(a, sin)));
  }
  for (; i < heads.half; ++i) rotate_pair(x[i], y[i], heads.cos[i], heads.sin[i]);
}

// Four numbers, each twice in a row.
__m256 twice(const float* p) {
  return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}

void rotate_adjacent(float* x, const HeadsOfToken& heads) {
  int32_t i = 0;
  for (; i + 4 <= heads.half; i += 4) {
    const __m256 pairs = _mm256_loadu_ps(x + 2 * i);
    const __m256 swapped = _mm256_permute_ps(pairs, 0xb1);
    _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(pairs, twice(heads.cos + i)),
                                                 _mm256_mul_ps(swapped, twice(heads.sin + i))));
  }
  for (; i < heads.half; ++i) rotate_pair(x[2 * i], x[2 * i + 1], heads.cos[i], heads.sin[i]);
}

template <Dtype T>
void narrow_as(const float* x, int64_t count, std::byte* target) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) simd::Avx2::store_as<T>(target + i * size_of(T), _mm256_loadu_ps(x + i));
  for (; i < count; ++i) store_element(T, target, i, x[i]);
}

}  // namespace

void avx2::rotate(const HeadsOfToken& heads) {
  for (int32_t head = 0; head < heads.heads; ++head) {
    float* x = heads.x + int64_t{head} * heads.dim;
    if (heads.norm) norm_head(x, heads);
    if (heads.adjacent_pairs)
      rotate_adjacent(x, heads);
    else
      rotate_halves(x, heads);
  }
}

void avx2::narrow(const float* x, int64_t count, Dtype type, std::byte* target) {
  if (type == Dtype::bf16) return narrow_as<Dtype::bf16>(x, count, target);
  if (type == Dtype::f16) return narrow_as<Dtype::f16>(x, count, target);
  narrow_as<Dtype::f32>(x, count, target);
}

}  // namespace quire::ops
