#include "device_choice.h"

#include "base/check.h"
#include "base/cuda.h"
#include "base/size_text.h"
#include "usage_error.h"

namespace quire {
namespace {

constexpr int kHopper = 90;
constexpr int64_t kBesideWeights = int64_t{1} << 30;  // for a step's rows and some keys and values

std::string version_text(int capability) { return cat(capability / 10, ".", capability % 10); }

// Why the GPU cannot be used; empty: it can.
std::string why_not(const GpuFacts& gpu, int64_t weight_bytes) {
  if (gpu.count == 0) return kNoGpu;
  if (gpu.capability / 10 != kHopper / 10)
    return cat("the ", gpu.name, " has compute capability ", version_text(gpu.capability), ", not 9.0");
  if (weight_bytes + kBesideWeights > gpu.free_bytes)
    return cat("the weights take ", size_text(weight_bytes), ", and ", size_text(gpu.free_bytes), " of the ", gpu.name,
               "'s memory are free");
  return "";
}

}  // namespace

GpuFacts gpu_facts() {
  GpuFacts facts{.count = cuda::devices()};
  if (facts.count == 0) return facts;
  facts.name = cuda::device_name();
  facts.capability = cuda::compute_capability();
  facts.free_bytes = cuda::memory().free;
  return facts;
}

DeviceChoice choose_device(const std::string& wanted, const GpuFacts& gpu, int64_t weight_bytes) {
  if (wanted == "cpu") return {Device::cpu, "cpu: as asked for"};
  const std::string reason = why_not(gpu, weight_bytes);
  if (reason.empty())
    return {Device::cuda, cat("cuda: ", gpu.name, ", compute capability ", version_text(gpu.capability))};
  if (wanted == "cuda") throw UsageError(cat("--device cuda: ", reason));
  return {Device::cpu, cat("cpu: ", reason)};
}

}  // namespace quire
