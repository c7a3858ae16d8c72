// The linker's --wrap sends a call of f to __wrap_f, and __real_f to f.
#include "cuda_call_counter.h"

#include <cuda_runtime_api.h>

namespace {

quire::testing::CudaCalls counted;
quire::testing::FailingCall failing;

// What this call returns without being made; success: it is made.
cudaError_t counts(const char* name) {
  ++counted[name];
  if (failing.number == 0 || failing.name != name) return cudaSuccess;
  if (failing.number > 1) return --failing.number, cudaSuccess;
  if (!failing.lasts) failing.number = 0;
  return static_cast<cudaError_t>(failing.error);
}

}  // namespace

void quire::testing::forget_cuda_calls() { counted.clear(); }
quire::testing::CudaCalls quire::testing::cuda_calls() { return counted; }
void quire::testing::fail_cuda_call(const FailingCall& call) { failing = call; }

extern "C" {
#define X(name, parameters, arguments)                               \
  cudaError_t __real_##name parameters;                              \
  cudaError_t __wrap_##name parameters;                              \
  cudaError_t __wrap_##name parameters {                             \
    const cudaError_t failed = counts(#name);                        \
    return failed != cudaSuccess ? failed : __real_##name arguments; \
  }
#include "cuda_calls.def"
#undef X
}
