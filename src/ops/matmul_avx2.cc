// Products on AVX2: pairs of bytes are multiplied into 16 bits, added up there as long as they fit, then in 32.
#include "ops/matmul_avx2.h"

#include "ops/matmul_dense.h"
#include "ops/matmul_quantised.h"

namespace quire::ops::cpu {
namespace {

struct Avx2 : Avx2Integers {
  static constexpr int kTogether = 1;

  // Less its offset, a block's whole sum of pairs fits 16 bits, so the offset is taken off there.
  static constexpr bool kStartsInPairs = true;
  template <int Offset, int Scales>
  static void fill_pair_starts(const int8_t* q, int64_t count, int32_t* words, int64_t next_term) {
    static_assert(Offset * 127 * 2 * 8 / Scales <= 32767 || Offset == 128);
    const I ones = _mm256_set1_epi8(1), offset = _mm256_set1_epi16(-Offset);
    for (int64_t b = 0; b < count; ++b) {
      I sums = _mm256_maddubs_epi16(ones, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + b * kBlockInputs)));
      sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0x4e));
      sums = _mm256_mullo_epi16(_mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xb1)), offset);
      const __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
      words[b] = _mm_cvtsi128_si32(Scales == 1 ? _mm_add_epi16(first, second) : first);
      if (Scales == 2) words[next_term + b] = _mm_cvtsi128_si32(second);
    }
  }

  template <WeightForm Form, int First, int Count, int R>
  [[gnu::always_inline]] static void add_dots(const I (&numbers)[8], const int8_t* q, int64_t stride, I (&sums)[R]) {
    constexpr bool kBytes = Form.largest == 255;
    constexpr int kFit = kBytes ? 1 : Form.starts ? Count : 32767 / (2 * Form.largest * 128);  // pairs that fit 16 bits
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r, q += stride) {
      I part = sums[r], sum = zero();
#pragma GCC unroll 8
      for (int i = 0; i < Count; ++i) {
        const I inputs = broadcast(q + 4 * (First + i));
        const I products =
            kBytes ? signed_pairs(numbers[First + i], inputs) : _mm256_maddubs_epi16(numbers[First + i], inputs);
        part = i % kFit == 0 && (kBytes || !Form.starts) ? products : _mm256_add_epi16(part, products);
        if (i % kFit != kFit - 1 && i != Count - 1) continue;
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
      }
      sums[r] = sum;
    }
  }

 private:
  // Of full bytes less their offset of 128: pairs of magnitudes fit 16 bits, the sign goes to the inputs.
  [[gnu::always_inline]] static I signed_pairs(I numbers, I inputs) {
    const I less = _mm256_xor_si256(numbers, _mm256_set1_epi8(-128));
    return _mm256_maddubs_epi16(_mm256_abs_epi8(less), _mm256_sign_epi8(inputs, less));
  }
};

}  // namespace

TilesFn* avx2_tiles(BlockType type) {
  return is_dense(type) ? dense_tiles<simd::Avx2>(type) : quantised_tiles<Avx2>(type);
}

}  // namespace quire::ops::cpu
