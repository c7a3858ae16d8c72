// Where a model runs: --device cpu | cuda | auto.
//
// auto takes a GPU of compute capability 9.0 whose free memory holds the model's weights, else the CPU, and says why.
//
// Errors   UsageError, one line, where a GPU was asked for and none can be used.
#pragma once
#include <cstdint>
#include <string>

#include "base/types.h"

namespace quire {

inline constexpr const char* kNoGpu = "this machine has no GPU, or quire was built without CUDA";

struct GpuFacts {
  int count = 0;  // 0: the rest is not known
  std::string name = {};
  int capability = 0;  // 90: 9.0
  int64_t free_bytes = 0;
};
GpuFacts gpu_facts();  // of this machine

struct DeviceChoice {
  Device device;
  std::string why;  // "cuda: an NVIDIA H200 of compute capability 9.0"
};
// weight_bytes: of the weights on a GPU.
DeviceChoice choose_device(const std::string& wanted, const GpuFacts& gpu, int64_t weight_bytes);

}  // namespace quire
