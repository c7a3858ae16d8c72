// A call of decode (decode_kernel_cuda.cuh), as its kernels are given it.
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/decode_cut.h"
#include "attn/split_cuda.cuh"

namespace quire::attn::cuda::decode_kernels {

struct Decode {
  AttendArgs args;
  DecodeCut cut;
  int32_t batch, workers;
  GroupDivider by_group;           // of a tile's rows
  int32_t rows;                    // most of a tile
  int32_t sums_rows;               // as many, if the warps' sums have a place of their own where they meet; else 0
  int32_t team;                    // warps that take the same keys: 1, 2 or 4
  int32_t stages;                  // of a warp: kFewestStages or kMostStages
  int32_t key_bytes, value_bytes;  // from one slot to the next
  bool keys_are_old;               // but for those of this step's queries: the kernel before wrote none of them
  bool reads_once;                 // no sequence has more than one tile
  PartialResults partial;          // one for each slot
  int32_t* arrivals;               // [kv heads, workers]

  __device__ int32_t worker() const { return static_cast<int32_t>(blockIdx.x) / args.kv.kv_heads; }
};

// A file for each type of keys, so that none takes long to compile.
template <class Stored>
void launch_for(const Decode& d, const GpuChoice& choice, cudaStream_t stream);

}  // namespace quire::attn::cuda::decode_kernels
