// Products on AVX2: pairs of bytes are multiplied into 16 bits, added up there as long as they fit, then in 32.
#include "ops/matmul_avx2.h"

#include "ops/matmul_dense.h"
#include "ops/matmul_quantised.h"

namespace quire::ops::cpu {
namespace {

struct Avx2 : Avx2Integers {
  // Numbers of full bytes are taken less their offset of 128.
  template <int Largest>
  static constexpr bool takes_offset() {
    return Largest == 255;
  }

  static constexpr int kTogether = 1;

  template <int Largest, int First, int Count, int R>
  [[gnu::always_inline]] static void add_dots(const I (&numbers)[8], const int8_t* q, int64_t stride, I (&sums)[R]) {
    constexpr int kFit = takes_offset<Largest>() ? 1 : 32767 / (2 * Largest * 128);  // pairs that fit 16 bits together
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r, q += stride) {
      I part;
#pragma GCC unroll 8
      for (int i = 0; i < Count; ++i) {
        const I products = pairs<Largest>(numbers[First + i], broadcast(q + 4 * (First + i)));
        part = i % kFit == 0 ? products : _mm256_add_epi16(part, products);
        if (i % kFit != kFit - 1 && i != Count - 1) continue;
        sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
      }
    }
  }

 private:
  template <int Largest>
  [[gnu::always_inline]] static I pairs(I numbers, I inputs) {
    if constexpr (!takes_offset<Largest>()) return _mm256_maddubs_epi16(numbers, inputs);
    const I less = _mm256_xor_si256(numbers, _mm256_set1_epi8(-128));  // pairs of its magnitudes fit, whatever the sign
    return _mm256_maddubs_epi16(_mm256_abs_epi8(less), _mm256_sign_epi8(inputs, less));
  }
};

}  // namespace

TilesFn* avx2_tiles(BlockType type) {
  return is_dense(type) ? dense_tiles<simd::Avx2>(type) : quantised_tiles<Avx2>(type);
}

}  // namespace quire::ops::cpu
