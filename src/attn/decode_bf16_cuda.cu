// Decode's kernels for keys and values of bf16.
#include "attn/decode_kernel_cuda.cuh"

namespace quire::attn::cuda::decode_kernels {

template void launch_for<__nv_bfloat16>(const Decode&, const GpuChoice&, cudaStream_t);

}  // namespace quire::attn::cuda::decode_kernels
