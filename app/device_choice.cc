#include "device_choice.h"

#include "base/cuda.h"
#include "base/cuda_absence.h"
#include "base/size_text.h"

namespace quire {
namespace {

constexpr int kHopper = 90;

std::string version_text(int capability) { return cat(capability / 10, ".", capability % 10); }

// Why the GPU cannot be used; empty: it can.
std::string why_not(const GpuFacts& gpu, const GpuWish& wish) {
  if (gpu.count == 0) return gpu.absence;
  if (gpu.capability / 10 != kHopper / 10)
    return cat("the ", gpu.name, " has compute capability ", version_text(gpu.capability), ", not 9.0");
  if (wish.kv_type == Dtype::f32) return "--kv-cache-dtype f32 is for CPUs, and bf16 for GPUs";
  if (!wish.fit.fits())
    return cat("weights, and keys and values of ", wish.fit.tokens, " tokens, need ", size_text(wish.fit.needed),
               ", and the ", gpu.name, " has ", size_text(wish.fit.there), " for them");
  return "";
}

}  // namespace

GpuFacts gpu_facts() {
  GpuFacts facts{.count = cuda::devices()};
  if (facts.count == 0) return {.absence = cuda::why_no_device()};
  facts.name = cuda::device_name();
  facts.capability = cuda::compute_capability();
  facts.free_bytes = cuda::memory().free;
  return facts;
}

DeviceChoice choose_device(const std::string& wanted, const GpuFacts& gpu, const GpuWish& wish) {
  if (wanted == "cpu") return {Device::cpu, "cpu: as asked for"};
  const std::string reason = why_not(gpu, wish);
  if (reason.empty())
    return {Device::cuda, cat("cuda: ", gpu.name, ", compute capability ", version_text(gpu.capability),
                              ": the model needs ", size_text(wish.fit.needed), " of ", size_text(wish.fit.there))};
  if (wanted == "cuda") throw UnusableDevice(cat("--device cuda: ", reason));
  return {Device::cpu, cat("cpu: ", reason)};
}

}  // namespace quire
