// For sources that call CUDA: every call's result is looked at.
#pragma once
#include <cuda_runtime_api.h>

#include "base/check.h"

namespace quire::cuda {

template <class... What>
void check_cuda(cudaError_t result, const What&... what) {
  if (result != cudaSuccess) throw CheckError(cat(what..., ": ", cudaGetErrorString(result)));
}

}  // namespace quire::cuda
