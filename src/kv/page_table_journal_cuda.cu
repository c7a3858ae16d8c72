// A step's changes into the mirror of the request table: a block takes a run at a time.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "base/cuda_call.h"
#include "kv/page_table_journal.h"

namespace quire::kv::cuda {
namespace {

constexpr int32_t kApplyThreads = 128, kApplyBlocks = 64;

__global__ void __launch_bounds__(kApplyThreads) apply_kernel(const __grid_constant__ ApplyJournalArgs a) {
  // Both are asked for at once, also a run that is not there: over a bus each way counts.
  PageRun run = a.runs[blockIdx.x];
  const int32_t runs = *a.count;
  for (int32_t i = blockIdx.x; i < runs; i += gridDim.x) {
    if (i >= static_cast<int32_t>(gridDim.x)) run = a.runs[i];
    PageId* to = a.mirror + run.row.value * a.stride + run.first;
    for (int32_t k = threadIdx.x; k < run.count; k += kApplyThreads) to[k] = a.pages[run.begin + k];
  }
}

}  // namespace

void apply_journal(const ApplyJournalArgs& args, Exec& exec) {
  const auto blocks = static_cast<uint32_t>(std::clamp(args.most_runs, 1, kApplyBlocks));
  apply_kernel<<<blocks, kApplyThreads, 0, quire::cuda::stream_of(exec)>>>(args);
  quire::cuda::check_cuda(cudaGetLastError(), "the page table's changes were not applied");
}

}  // namespace quire::kv::cuda
