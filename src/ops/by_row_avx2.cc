// The row kernels of by_row.h in AVX2, with the bits of the plain loops in x_ref.cc and logits.cc.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/simd/avx2.h"
#include "ops/by_row.h"
#include "ops/logits.h"

namespace quire::ops {
namespace {  // compiled with special flags: the linker must not keep one copy for all

// --- quantise

// The bits of the largest magnitude. As integers magnitudes have the order of their values, infinity is above all
// numbers and NaN above infinity: the largest alone tells whether the block is sound.
uint32_t largest_magnitude(const __m256 (&x)[4]) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const auto of = [&](int i) { return _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude); };
  const __m256i most = _mm256_max_epi32(_mm256_max_epi32(of(0), of(1)), _mm256_max_epi32(of(2), of(3)));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// x * inverse as 32 bytes in the order of x.
__m256i rounded_bytes(const __m256 (&x)[4], float inverse) {
  const __m256 factor = _mm256_set1_ps(inverse);
  const auto rounded = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(x[i], factor)); };
  const __m256i low = _mm256_packs_epi32(rounded(0), rounded(1)), high = _mm256_packs_epi32(rounded(2), rounded(3));
  // Packing works inside 128-bit halves; this puts the groups of four bytes back in order.
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Sums of the low and of the high 16 bytes: bytes made unsigned by adding 128, eight summed at a time, 128 taken off.
void store_sums(__m256i q, int32_t* sums) {
  const __m256i sums_of_8 = _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i both = _mm256_add_epi32(sums_of_8, _mm256_shuffle_epi32(sums_of_8, 0x4e));
  sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(both)) - 16 * 128;
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(both, 1)) - 16 * 128;
}

inline void quantise_block(const __m256 (&x)[4], int64_t b, const QuantisedRow& out) {
  constexpr uint32_t kLeast = std::bit_cast<uint32_t>(0x1p-119f), kInfinity = 0x7f800000u, kNan = 0x7fc00000u;
  auto* q = reinterpret_cast<__m256i*>(out.q + b * kActivationBlock);
  const uint32_t bits = largest_magnitude(x);
  if (bits < kLeast || bits >= kInfinity) [[unlikely]] {
    out.scale[b] = bits < kLeast ? 0.0f : std::bit_cast<float>(kNan);
    _mm256_storeu_si256(q, _mm256_setzero_si256());
    out.sums[2 * b] = out.sums[2 * b + 1] = 0;
    return;
  }
  const auto largest = std::bit_cast<float>(bits);
  out.scale[b] = largest / 127.0f;
  const __m256i bytes = rounded_bytes(x, 127.0f / largest);
  _mm256_storeu_si256(q, bytes);
  store_sums(bytes, out.sums + 2 * b);
}

// What block b of the quantised row leaves over of x.
void quantise_rest(const __m256 (&x)[4], int64_t b, const ActivationRow& out) {
  const __m256 scale = _mm256_set1_ps(out.q8.scale[b]);
  const int8_t* q = out.q8.q + b * kActivationBlock;
  __m256 rest[4];
  for (int i = 0; i < 4; ++i) {
    const __m256i whole = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + 8 * i)));
    rest[i] = _mm256_sub_ps(x[i], _mm256_mul_ps(scale, _mm256_cvtepi32_ps(whole)));
  }
  quantise_block(rest, b, out.rest);
}

inline void fill_block(const __m256 (&x)[4], int64_t b, const ActivationRow& out) {
  quantise_block(x, b, out.q8);
  if (out.rest.q) quantise_rest(x, b, out);
}

void fill_row(const float* x, int64_t dim, const ActivationRow& out) {
  if (out.f32) std::memcpy(out.f32, x, static_cast<size_t>(dim) * sizeof(float));
  if (!out.q8.q) return;
  for (int64_t b = 0; b < dim / kActivationBlock; ++b) {
    const float* from = x + b * kActivationBlock;
    const __m256 values[4] = {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8), _mm256_loadu_ps(from + 16),
                              _mm256_loadu_ps(from + 24)};
    fill_block(values, b, out);
  }
}

// --- rms_norm

__m256 first_of(const float* x, int64_t count) {  // then zeros
  alignas(32) float rest[8] = {};
  for (int64_t i = 0; i < count; ++i) rest[i] = x[i];
  return _mm256_load_ps(rest);
}

// Squares of up to kSquareLanes numbers to their lanes: as what these begin with, or added to what is there.
template <bool begins>
void add_squares(const float* x, int64_t count, float* lanes) {
  for (int64_t i = 0; i < count; i += 8) {
    const __m256 numbers = i + 8 <= count ? _mm256_loadu_ps(x + i) : first_of(x + i, count - i);
    const __m256 so_far = begins ? _mm256_setzero_ps() : _mm256_load_ps(lanes + i);
    _mm256_store_ps(lanes + i, _mm256_fmadd_ps(numbers, numbers, so_far));
  }
}

// ref::rms_scale. Of a short row the lanes behind its end would be zeros, which change no sum: they are left out.
float rms_scale(const float* x, int64_t dim, float eps) {
  alignas(32) float lanes[kSquareLanes];
  const int64_t begun = dim < kSquareLanes ? dim : kSquareLanes;
  add_squares<true>(x, begun, lanes);
  for (int64_t at = kSquareLanes; at < dim; at += kSquareLanes)
    add_squares<false>(x + at, dim - at < kSquareLanes ? dim - at : kSquareLanes, lanes);
  int64_t held = (begun + 7) / 8 * 8;
  for (int64_t half = kSquareLanes / 2; half >= 8; half /= 2) {
    for (int64_t i = 0; i + half < held; i += 8)
      _mm256_store_ps(lanes + i, _mm256_add_ps(_mm256_load_ps(lanes + i), _mm256_load_ps(lanes + half + i)));
    held = held < half ? held : half;
  }
  const float sum = simd::Avx2::reduce_add(_mm256_load_ps(lanes));  // folds by halves
  return 1.0f / std::sqrt(sum / static_cast<float>(dim) + eps);
}

template <bool f32, bool q8>
void norm_blocks(const float* x, const float* weight, float scale, int64_t blocks, const ActivationRow& out) {
  const __m256 factor = _mm256_set1_ps(scale);
  for (int64_t b = 0; b < blocks; ++b) {
    __m256 normed[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t at = b * kActivationBlock + i * 8;
      normed[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + at), factor), _mm256_loadu_ps(weight + at));
      if (f32) _mm256_storeu_ps(out.f32 + at, normed[i]);
    }
    if (q8) fill_block(normed, b, out);
  }
}

void rms_norm_row(const float* x, const float* weight, float eps, int64_t dim, const ActivationRow& out) {
  const float scale = rms_scale(x, dim, eps);
  const int64_t blocks = dim / kActivationBlock;
  if (!out.f32) return norm_blocks<false, true>(x, weight, scale, blocks, out);
  if (out.q8.q) return norm_blocks<true, true>(x, weight, scale, blocks, out);
  norm_blocks<true, false>(x, weight, scale, blocks, out);
  for (int64_t i = blocks * kActivationBlock; i < dim; ++i) out.f32[i] = (x[i] * scale) * weight[i];
}

// --- rope

void norm_in_place(float* x, const float* weight, float eps, int64_t dim) {
  const float scale = rms_scale(x, dim, eps);
  const __m256 factor = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + 8 <= dim; i += 8)
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _mm256_loadu_ps(weight + i)));
  for (; i < dim; ++i) x[i] = (x[i] * scale) * weight[i];
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

void rotate(const HeadsOfToken& heads) {
  const int64_t all = int64_t{heads.heads} * heads.dim;
  for (int64_t at = 0; heads.norm && at < all; at += heads.norm_dim)
    norm_in_place(heads.x + at, heads.norm, heads.eps, heads.norm_dim);
  for (float* x = heads.x; x < heads.x + all; x += heads.dim) {
    if (heads.adjacent_pairs)
      rotate_adjacent(x, heads);
    else
      rotate_halves(x, heads);
  }
}

void narrow(const float* x, int64_t count, Dtype type, std::byte* target) {
  if (type == Dtype::bf16) return narrow_as<Dtype::bf16>(x, count, target);
  if (type == Dtype::f16) return narrow_as<Dtype::f16>(x, count, target);
  narrow_as<Dtype::f32>(x, count, target);
}

// --- logits

float largest(const float* x, int64_t count) {
  constexpr int kChains = 4;
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  __m256 most[kChains];
  for (__m256& chain : most) chain = _mm256_set1_ps(kLeast);
  int64_t i = 0;
  for (; i + 8 * kChains <= count; i += 8 * kChains)
    for (int c = 0; c < kChains; ++c)  // where one is NaN the second of the two
      most[c] = _mm256_max_ps(_mm256_loadu_ps(x + i + 8 * c), most[c]);
  float lanes[8 * kChains], result = kLeast;
  for (int c = 0; c < kChains; ++c) _mm256_storeu_ps(lanes + 8 * c, most[c]);
  for (const float lane : lanes) result = std::max(result, lane);
  for (; i < count; ++i) result = std::max(result, x[i]);
  return result;
}

void mark_groups(const float* x, int64_t count, float least, uint8_t* marks) {
  static_assert(kLogitGroup == 16);
  const __m256 bound = _mm256_set1_ps(least);
  int64_t group = 0;
  for (; (group + 1) * kLogitGroup <= count; ++group, x += kLogitGroup) {
    const __m256 low = _mm256_cmp_ps(_mm256_loadu_ps(x), bound, _CMP_GE_OQ);
    const __m256 high = _mm256_cmp_ps(_mm256_loadu_ps(x + 8), bound, _CMP_GE_OQ);
    marks[group] = _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0;
  }
  const int64_t left = count - group * kLogitGroup;
  if (left > 0) marks[group] = std::any_of(x, x + left, [least](float value) { return value >= least; });
}

}  // namespace

RowKernels avx2::row_kernels() { return {fill_row, rms_norm_row, rotate, narrow, largest, mark_groups}; }

}  // namespace quire::ops
