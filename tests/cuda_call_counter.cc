// The linker's --wrap sends a call of f to __wrap_f, and __real_f to f.
#include "cuda_call_counter.h"

#include <cuda_runtime_api.h>

namespace {

quire::testing::CudaCalls counted;

}  // namespace

void quire::testing::forget_cuda_calls() { counted.clear(); }
quire::testing::CudaCalls quire::testing::cuda_calls() { return counted; }

extern "C" {
#define X(name, parameters, arguments)   \
  cudaError_t __real_##name parameters;  \
  cudaError_t __wrap_##name parameters;  \
  cudaError_t __wrap_##name parameters { \
    ++counted[#name];                    \
    return __real_##name arguments;      \
  }
#include "cuda_calls.def"
#undef X
}
