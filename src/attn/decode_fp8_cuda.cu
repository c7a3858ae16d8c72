// Decode's kernels for keys and values of 8 bits.
#include "attn/decode_kernel_cuda.cuh"

namespace quire::attn::cuda::decode_kernels {

template void launch_for<__nv_fp8_e4m3>(const Decode&, const GpuChoice&, cudaStream_t);

}  // namespace quire::attn::cuda::decode_kernels
