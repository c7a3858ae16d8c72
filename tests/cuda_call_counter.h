// Which functions of CUDA's runtime were called, and how often, by anything in the program that was compiled with it;
// and calls that fail as if the device or its memory had.
#pragma once
#include <map>
#include <string>

namespace quire::testing {

using CudaCalls = std::map<std::string, int>;
void forget_cuda_calls();
CudaCalls cuda_calls();  // since they were forgotten; those that were not called are not in it

// The call of this function with this number, the next is 1, and if it `lasts` all later ones, do nothing and return
// the error (a cudaError_t). One function at a time; 0: none fails any more.
struct FailingCall {
  std::string name = {};
  int number = 0;
  int error = 0;
  bool lasts = false;
};
void fail_cuda_call(const FailingCall& failing);

}  // namespace quire::testing
