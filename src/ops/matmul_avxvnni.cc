// Products on AVX-VNNI: dots of four bytes, eight columns at a time.
#include "ops/matmul_avx2.h"
#include "ops/matmul_dots.h"
#include "ops/matmul_quantised.h"

namespace quire::ops::cpu {
namespace {

struct AvxVnni : Avx2Integers {
  static constexpr bool kStartsInPairs = false;
  static constexpr int kTogether = 1;

  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  [[gnu::always_inline]] static void add_dot(I& sums, I numbers, const int8_t* q) {
    sums = _mm256_dpbusd_avx_epi32(sums, numbers, broadcast(q));
  }

  template <WeightForm, int First, int Count, int R>
  [[gnu::always_inline]] static void add_dots(const I (&numbers)[8], const int8_t* q, int64_t stride, I (&sums)[R]) {
    add_dots_of_four<AvxVnni, First, Count>(numbers, q, stride, sums);
  }
};

}  // namespace

TilesFn* avxvnni_tiles(BlockType type) { return quantised_tiles<AvxVnni>(type); }

}  // namespace quire::ops::cpu
