// Which functions of CUDA's runtime were called, and how often, by anything in the program that was compiled with it.
#pragma once
#include <map>
#include <string>

namespace quire::testing {

using CudaCalls = std::map<std::string, int>;
void forget_cuda_calls();
CudaCalls cuda_calls();  // since they were forgotten; those that were not called are not in it

}  // namespace quire::testing
