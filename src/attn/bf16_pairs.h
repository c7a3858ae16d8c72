// Pairs of bf16 rows side by side, as tiles and dot products take them, and the order of dimensions that comes of it.
//
// Of 32 dimensions the even ones are paired in one register and the odd ones in the next, because that needs only
// shifts and masks. Results stand in that order, 16 even and 16 odd of every 32, until natural_order() puts them right
// once a range. Internal linkage for the reason attend_walk.h gives; include only from sources compiled for AVX-512 and
// its bf16 instructions.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace quire::attn::cpu {
namespace {

// Lane i: (first[2i], second[2i]).
inline __m512i even_pairs(__m512i first, __m512i second) {
  return _mm512_mask_mov_epi16(first, 0xaaaaaaaau, _mm512_slli_epi32(second, 16));
}
// Lane i: (first[2i + 1], second[2i + 1]).
inline __m512i odd_pairs(__m512i first, __m512i second) {
  return _mm512_mask_mov_epi16(second, 0x55555555u, _mm512_srli_epi32(first, 16));
}

// Rounds p to the elements [i, i + 16) of a row of bf16 that lies where the row of floats did. In place: what is
// written never reaches floats that are still to be read, if i ascends.
inline void put_bf16(float* row, int i, __m512 p) {
  const __m256bh rounded = _mm512_cvtneps_pbh(p);
  std::memcpy(reinterpret_cast<std::byte*>(row) + i * 2, &rounded, sizeof(rounded));
}

inline void natural_order(float* row, int32_t dim) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int32_t i = 0; i < dim; i += 32) {
    const __m512 even = _mm512_loadu_ps(row + i), odd = _mm512_loadu_ps(row + i + 16);
    _mm512_storeu_ps(row + i, _mm512_permutex2var_ps(even, low, odd));
    _mm512_storeu_ps(row + i + 16, _mm512_permutex2var_ps(even, high, odd));
  }
}

}  // namespace
}  // namespace quire::attn::cpu
