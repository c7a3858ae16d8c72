// Which of the GPU's kernels attends, and how it is launched: a pure function of the call and the device, so that it
// can be printed and tested on any machine.
//
//   general   every mode, variant, type and dim whose tile fits into a block's shared memory; from compute capability
//             8.0 on
//   decode    few queries of each sequence over many keys, 16 or 8 bits, dims 64 and 128; and any number of them, where
//             no other does that in tensor cores
//   decode_cluster
//             few queries of each of few sequences, where latency is all: 16 bits, dims 64 and 128, no long contexts,
//             on Hopper
//   decode_parts
//             one query of one sequence, likewise, where the one reduction is asked for
//   decode_many
//             one query of each of many sequences, 16 bits, dims 64 and 128, no long contexts
//   latent    any number of queries over latent keys of 576 columns, 16 or 8 bits, on Hopper
//   prefill   many queries of each sequence, 16 or 8 bits, on Hopper; few, too, and trees, of dims that decode has
//             no kernel for
//
// The one reduction (AttendArgs::deterministic) is kept by decode with a fixed cut (decode_cut.h), by decode_parts,
// whose bits are the same, and by general. Which of decode and general is taken depends on types, dims, strides and the
// kind of layer alone, never on a step.
//
// Before   check_args() has let the call pass.
// Errors   CheckError that prints the problem and the device, where not even the general kernel fits.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attn/attention.h"
#include "attn/cpu_choice.h"

namespace quire::attn {

struct GpuDevice {
  int32_t capability;       // 90: compute capability 9.0
  int32_t processors;       // multiprocessors
  int32_t shared_bytes;     // most that a block may have
  int32_t reserved_shared;  // bytes of shared memory before these, the system's own
};
std::string to_string(const GpuDevice& device);

enum class GpuKernel : uint8_t { general, decode, decode_cluster, decode_parts, decode_many, latent, prefill };
inline constexpr std::array kGpuKernels = {GpuKernel::general,      GpuKernel::decode,      GpuKernel::decode_cluster,
                                           GpuKernel::decode_parts, GpuKernel::decode_many, GpuKernel::latent,
                                           GpuKernel::prefill};
const char* to_string(GpuKernel kernel);

struct GpuChoice {
  GpuKernel kernel;
  const char* why = "";
  int32_t blocks = 0;   // which share the work; of the general kernel every tile is a block's
  int32_t box = 0;      // slots that TMA brings at once; 0: keys come row by row
  int32_t cluster = 0;  // decode_cluster, decode_parts: blocks that have one sequence and kv head together
  // decode: tiles of 8 query rows that a warp takes (decode_cluster: that a sequence may have); warps that take the
  // same keys; stages of each warp. Whether what is added up together depends on positions alone; whether no sequence
  // has more rows than a tile; rows of a partial result; partial results that a worker has room for; rows of the warps'
  // sums that have a place of their own where they meet.
  int32_t row_tiles = 0, team = 0, stages = 0;  // team: also of decode_many
  bool is_fixed = false, is_one_tile = false;
  int32_t split_rows = 0, slots_of_worker = 0, sums_rows = 0;

  constexpr int32_t tile_rows() const { return row_tiles * 8 * team; }
  // latent: blocks of 64 packed rows that go through the same keys; thread blocks that load these together. Whether
  // keys are split, and whether whole tiles are dealt out: where both, the step's lengths say which (latent_cut.h).
  int32_t row_blocks = 0, pair = 0;
  bool splits_keys = false, deals_tiles = false;  // the former of prefill, too

  bool operator==(const GpuChoice&) const = default;
};
std::string to_string(const GpuChoice& choice);

GpuChoice choose_gpu(const AttendArgs& args, const GpuDevice& device);

// A call without memory behind it: the choice looks at no element, and no GPU need be there.
struct GpuProblem {
  Problem shapes;
  Mode mode = Mode::decode;
  int32_t batch = 1, queries = 1;  // the latter of each sequence, but in decode
  int32_t context = 4096, page_size = 16;
  bool is_latent = false, is_deterministic = false;
};
GpuChoice choose_gpu(const GpuProblem& problem, const GpuDevice& device);

// Which steps of a model of these shapes the general kernel takes, and why, in one line for whoever loads it; none: no
// step.
std::optional<std::string> slow_attention(const Problem& shapes, bool is_deterministic, const GpuDevice& device);

// For whoever records steps: contexts, ascending to the limits', such that a decode of these args is chosen otherwise
// where no sequence is longer (StepShape::context). A graph for each is as good as one for every length.
std::vector<int32_t> decode_contexts(AttendArgs args, const GpuDevice& device);

// latent: rows of each split in the workspace.
int32_t latent_split_rows(const AttendArgs& args);

namespace cuda {
GpuDevice device();  // the one that is used
}  // namespace cuda

// Calls that this process gave to a kernel so far. A recorded one counts once, however often it is replayed.
int64_t launches_of(GpuKernel kernel);
void count_launch(GpuKernel kernel);

}  // namespace quire::attn
