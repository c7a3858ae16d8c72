// In place of gpu_read.cu where the build has no CUDA.
#include "base/check.h"
#include "gpu_read.h"

namespace quire::bench {

double gpu_read_bytes(cuda::Stream&) { throw CheckError("quire was built without CUDA"); }

}  // namespace quire::bench
