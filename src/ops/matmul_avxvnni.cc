// Products on AVX-VNNI: dots of four bytes, eight columns at a time.
#include "ops/matmul_avx2.h"
#include "ops/matmul_quantised.h"

namespace quire::ops::cpu {
namespace {

struct AvxVnni : Avx2Integers {
  static constexpr bool kStartsInPairs = false;
  static constexpr int kTogether = 1;

  template <WeightForm, int First, int Count, int R>
  [[gnu::always_inline]] static void add_dots(const I (&numbers)[8], const int8_t* q, int64_t stride, I (&sums)[R]) {
    constexpr int kChains = R == 1 ? 2 : 1;  // a row alone has two, which wait less for each other's products
    const int8_t* rows[R];
    for (int r = 0; r < R; ++r) {
      rows[r] = q + r * stride;
      asm("" : "+r"(rows[r]));  // else GCC keeps every word's distance from q apart
    }
    I chains[R][kChains];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      chains[r][kChains - 1] = zero();
      chains[r][0] = sums[r];
    }
#pragma GCC unroll 8
    for (int i = First; i < First + Count; ++i)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        I& chain = chains[r][i % kChains];
        chain = _mm256_dpbusd_avx_epi32(chain, numbers[i], broadcast(rows[r] + 4 * i));
      }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      sums[r] = kChains == 2 ? _mm256_add_epi32(chains[r][0], chains[r][1 % kChains]) : chains[r][0];
  }
};

}  // namespace

TilesFn* avxvnni_tiles(BlockType type) { return quantised_tiles<AvxVnni>(type); }

}  // namespace quire::ops::cpu
