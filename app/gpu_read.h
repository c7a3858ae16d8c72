// How fast this GPU reads its own memory: the ceiling that attention with few queries is held against.
#pragma once
#include "base/cuda.h"

namespace quire::bench {

double gpu_read_bytes(cuda::Stream& stream);  // a second; the best of a few runs over memory larger than any cache

}  // namespace quire::bench
