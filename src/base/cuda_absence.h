// Why there is no GPU to compute on, for whoever has one and sees the CPU work.
#pragma once
#include <string>

namespace quire::cuda {

// In a few words: built without CUDA's compiler, or what CUDA says of its absence. Asked where devices() is 0.
std::string why_no_device();

}  // namespace quire::cuda
