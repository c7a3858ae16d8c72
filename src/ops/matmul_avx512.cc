#include "base/simd/avx512.h"
#include "ops/matmul_dense.h"

namespace quire::ops::cpu {

TilesFn* avx512_dense_tiles(BlockType type) { return dense_tiles<simd::Avx512>(type); }

}  // namespace quire::ops::cpu
