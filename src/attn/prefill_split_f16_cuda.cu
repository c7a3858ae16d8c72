// Prefill's kernels for queries of f16, of tiles that may be split.
#include "attn/prefill_kernel_cuda.cuh"

namespace quire::attn::cuda::prefill_kernels {

template void launch<__half, true>(const Prefill&, int32_t, cudaStream_t);

}  // namespace quire::attn::cuda::prefill_kernels
