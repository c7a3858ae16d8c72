// In place of the implementations for GPUs where the build has no CUDA.
#include "attn/attention.h"
#include "attn/gpu_choice.h"
#include "attn/merge.h"
#include "attn/step_upload_cuda.h"
#include "attn/write_metadata.h"
#include "base/check.h"

namespace quire::attn::cuda {
namespace {

[[noreturn]] void refuse() { throw CheckError("quire was built without CUDA"); }

}  // namespace

GpuDevice device() { refuse(); }
void attend(const AttendArgs&, Exec&) { refuse(); }
void fetch(const FetchArgs&, Exec&) { refuse(); }
void merge(const MergeArgs&, Exec&) { refuse(); }
void write_metadata(const StepShape&, const StepInputs&, const MetadataArena&, Exec&) { refuse(); }
void follow_parents(const StepShape&, const StepInputs&, const MetadataArena&, int32_t, const int32_t*, Exec&) {
  refuse();
}

}  // namespace quire::attn::cuda
