// What a process may count on of a GPU that it shares.
#pragma once
#include <cstdint>

namespace quire::cuda {

// Bytes of the device that were free before this process took any: as its first stream was made, or somebody first
// asked.
int64_t free_at_start();

}  // namespace quire::cuda
