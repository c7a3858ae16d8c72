// In place of gpu_products.cu where the build has no CUDA.
#include "base/check.h"
#include "gpu_products.h"

namespace quire::bench {

std::optional<double> gpu_bf16_flops(cuda::Stream&) { throw CheckError("quire was built without CUDA"); }

}  // namespace quire::bench
