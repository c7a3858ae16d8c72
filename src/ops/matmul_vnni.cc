#include "ops/matmul_vnni.h"

#include "ops/matmul_quantised.h"

namespace quire::ops::cpu {

TilesFn* vnni_tiles(BlockType type) { return quantised_tiles<Vnni>(type); }

}  // namespace quire::ops::cpu
