// Products on AVX2: pairs of bytes are multiplied into 16 bits and added up in 32.
#include <immintrin.h>

#include <cstring>

#include "base/simd/avx2.h"
#include "ops/matmul_dense.h"
#include "ops/matmul_quantised.h"

namespace quire::ops::cpu {
namespace {

struct Avx2 {
  using Simd = simd::Avx2;
  using I = __m256i;
  using F = Simd::F;
  static constexpr int kRows = 4;

  static I zero() { return _mm256_setzero_si256(); }
  static I load(const std::byte* line) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(line)); }
  static I broadcast(const void* word) {
    int32_t bits;
    std::memcpy(&bits, word, sizeof(bits));
    return _mm256_set1_epi32(bits);
  }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  static F negated(F x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
  static F widen_u8(const std::byte* from) {
    return to_float(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static F widen_i8(const std::byte* from) {
    return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }

  // Every byte moved left by Left bits (right when negative), of which Mask is kept.
  template <int Mask, int Left>
  static I bits(I x) {
    return _mm256_and_si256(moved<Left>(x), _mm256_set1_epi8(Mask));
  }
  // to | bits<Mask, Left>(x)
  template <int Mask, int Left>
  static I with_bits(I to, I x) {
    return _mm256_or_si256(to, bits<Mask, Left>(x));
  }

  template <bool FullBytes>
  static I dot(I sums, I weights, I activations) {
    if constexpr (!FullBytes) {  // 2 * 63 * 128 fits 16 bits
      const I pairs = _mm256_maddubs_epi16(weights, activations);
      return add(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    const I low = _mm256_set1_epi16(0xff);
    const I even =
        _mm256_madd_epi16(_mm256_and_si256(weights, low), _mm256_srai_epi16(_mm256_slli_epi16(activations, 8), 8));
    const I odd = _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), _mm256_srai_epi16(activations, 8));
    return add(sums, add(even, odd));
  }

 private:
  template <int Left>
  static I moved(I x) {
    if constexpr (Left > 0) return _mm256_slli_epi16(x, Left);
    if constexpr (Left < 0) return _mm256_srli_epi16(x, -Left);
    return x;
  }
};

}  // namespace

TilesFn* avx2_tiles(BlockType type) {
  return is_dense(type) ? dense_tiles<simd::Avx2>(type) : quantised_tiles<Avx2>(type);
}

}  // namespace quire::ops::cpu
