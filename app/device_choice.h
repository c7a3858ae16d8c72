// Where a model runs: --device cpu | cuda | auto.
//
// auto takes a GPU of compute capability 9.0 whose free memory holds the model's weights and a pool that is of use
// (engine/pool_memory.h), else the CPU, and says why.
//
// Errors   UnusableDevice, one line, where a GPU was asked for and none can be used.
#pragma once
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/types.h"
#include "engine/pool_memory.h"

namespace quire {

class UnusableDevice : public CheckError {
 public:
  using CheckError::CheckError;
};

struct GpuFacts {
  int count = 0;             // 0: only why there is none is known
  std::string absence = {};  // "quire was built without CUDA's compiler"
  std::string name = {};
  int capability = 0;  // 90: 9.0
  int64_t free_bytes = 0;
};
GpuFacts gpu_facts();  // of this machine

// What the model asks of a GPU. The defaults ask for nothing.
struct GpuWish {
  engine::GpuFit fit = {};
  Dtype kv_type = Dtype::bf16;
};

struct DeviceChoice {
  Device device;
  std::string why;  // "cuda: NVIDIA H200, compute capability 9.0: the model needs 17.1 GB of 123 GB"
};
DeviceChoice choose_device(const std::string& wanted, const GpuFacts& gpu, const GpuWish& wish = {});

}  // namespace quire
