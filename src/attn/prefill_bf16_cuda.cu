// Prefill's kernels for queries of bf16.
#include "attn/prefill_kernel_cuda.cuh"

namespace quire::attn::cuda::prefill_kernels {

template void launch<__nv_bfloat16, false>(const Prefill&, int32_t, cudaStream_t);

}  // namespace quire::attn::cuda::prefill_kernels
