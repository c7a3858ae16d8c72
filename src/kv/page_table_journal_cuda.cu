// A step's changes into the mirror of the request table, by one block. The journal lies in the host's memory: a line of
// it that several ask for goes over the bus as often, one after the other, so each line is asked for once. First the
// runs, those too that are not there, then the pages of all of them.
#include <cuda_runtime.h>

#include <cstdint>

#include "base/cuda_call.h"
#include "kv/page_table_journal.h"

namespace quire::kv::cuda {
namespace {

constexpr int32_t kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int32_t kPagesAtOnce = 4 * kThreads;
static_assert(sizeof(PageRun) == sizeof(uint4) && sizeof(PageId) == sizeof(int32_t));

struct Journal {
  uint4 runs[kThreads];
  int32_t pages[kPagesAtOnce];  // of all runs, the first
  int32_t count;

  __device__ const PageRun& run(int32_t i) const { return reinterpret_cast<const PageRun*>(runs)[i]; }
};

__global__ void __launch_bounds__(kThreads) apply_kernel(const __grid_constant__ ApplyJournalArgs a) {
  __shared__ Journal journal;
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const auto* const from = reinterpret_cast<const uint4*>(a.runs);
  const auto* const ids = reinterpret_cast<const int32_t*>(a.pages);
  uint4 run = thread < a.most_runs ? __ldcv(from + thread) : uint4{};
  if (thread == 0) journal.count = __ldcv(a.count);
  for (int32_t first = 0;; first += kThreads) {
    journal.runs[thread] = run;
    __syncthreads();
    const int32_t count = min(journal.count - first, kThreads);
    if (count <= 0) return;
    const int32_t begin = journal.run(0).begin,
                  pages = journal.run(count - 1).begin + journal.run(count - 1).count - begin;
    for (int32_t k = thread; k < min(pages, kPagesAtOnce); k += kThreads) journal.pages[k] = __ldcv(ids + begin + k);
    if (first + kThreads + thread < journal.count) run = __ldcv(from + first + kThreads + thread);
    __syncthreads();
    for (int32_t i = warp; i < count; i += kWarps) {
      const PageRun& r = journal.run(i);
      auto* const to = reinterpret_cast<int32_t*>(a.mirror) + r.row.value * a.stride + r.first;
      for (int32_t k = lane; k < r.count; k += kWarp) {
        const int32_t at = r.begin - begin + k;
        to[k] = at < kPagesAtOnce ? journal.pages[at] : __ldcv(ids + begin + at);
      }
    }
    __syncthreads();
  }
}

}  // namespace

void apply_journal(const ApplyJournalArgs& args, Exec& exec) {
  apply_kernel<<<1, kThreads, 0, quire::cuda::stream_of(exec)>>>(args);
  quire::cuda::check_cuda(cudaGetLastError(), "the page table's changes were not applied");
}

}  // namespace quire::kv::cuda
