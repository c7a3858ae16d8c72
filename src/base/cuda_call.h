// For sources that call CUDA: every call's result is looked at, and kernels go to the stream of their Exec.
#pragma once
#include <cuda_runtime_api.h>

#include "base/check.h"
#include "base/exec.h"

namespace quire::cuda {

template <class... What>
void check_cuda(cudaError_t result, const What&... what) {
  if (result != cudaSuccess) throw DeviceError(cat(what..., ": ", cudaGetErrorString(result)));
}

inline cudaStream_t stream_of(Exec& exec) {
  check(exec.stream() != nullptr, "an operation of the GPU needs an Exec with a stream");
  return static_cast<cudaStream_t>(exec.stream()->handle());
}

}  // namespace quire::cuda
