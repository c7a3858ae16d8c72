// In place of gpu_products.cu and gpu_read.cu where the build has no CUDA.
#include "base/check.h"
#include "gpu_limits.h"

namespace quire::bench {
namespace {

[[noreturn]] void refuse_without_cuda() { throw CheckError("quire was built without CUDA"); }

}  // namespace

std::optional<double> gpu_bf16_flops(cuda::Stream&) { refuse_without_cuda(); }
double gpu_read_bytes(cuda::Stream&) { refuse_without_cuda(); }

}  // namespace quire::bench
