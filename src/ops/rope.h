// Rotary positions: angles once a step, rotations once a layer.
//
//   angle(p, i) = p * inverse_frequency[i],  cos and sin scaled by `magnitude` (yarn)
//   pairs   adjacent: (2i, 2i + 1), as llama's GGUF files have them      halves: (i, i + rotary / 2), as Hugging Face's
//
// Dims past `rotary` pass unchanged. A pair (a, b) becomes (a cos - b sin, b cos + a sin), each product and sum rounded
// to f32 by itself: every instruction set and the GPU give the same bits. The GPU's cosines and sines may differ from
// the CPU's in the last bit of their f32.
//
// Errors   broken shapes and missing addresses throw CheckError before any work, rows outside the room when the
//          operation runs (on a GPU a live count beyond the room counts as the room).
#pragma once
#include <cstdint>
#include <vector>

#include "base/exec.h"
#include "base/tensor.h"
#include "base/types.h"

namespace quire::ops {

// How positions beyond the trained context are squeezed.
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, llama3, yarn } kind = Kind::none;
  double factor = 1;
  double original_context = 0;                                 // llama3, yarn
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1, attention_factor = 0;  // yarn; attention_factor 0: 0.1 ln(factor) + 1
};

struct RopeTable {
  std::vector<float> inverse_frequency;  // [rotary / 2]
  float magnitude = 1;
};
// Throws CheckError for an odd rotary, a theta that is not positive or parameters that make no sense. The optional
// factors [rotary / 2] divide the frequencies (the tensor rope_freqs of GGUF files, which stands for llama3's rule).
RopeTable rope_table(int32_t rotary, double theta, const RopeScaling& scaling, const float* factors = nullptr);

// The products are exact and the cosines and sines those of double arithmetic, at any position.
struct RopeAnglesArgs {
  const int32_t* positions;        // [rows]
  const float* inverse_frequency;  // [half]
  float magnitude;
  int32_t half;  // rotary / 2
  float* cos;    // [rows, half]
  float* sin;    // [rows, half]
  const int32_t* live_rows;
};
using RopeAnglesFn = void(const RopeAnglesArgs&, Exec&);
namespace cpu {
RopeAnglesFn rope_angles;  // plain loops, the meaning itself
}
namespace cuda {
RopeAnglesFn rope_angles;
}
RopeAnglesFn rope_angles;  // for callers; records while exec captures

// From one f32 row of (q heads, k heads, v heads) to rotated queries in attention's type and rotated keys in place.
// With norms, each head of q and k (Qwen3), or all heads of q and all of k together (OLMo 2), are first divided by
// their root mean square and multiplied by the weight, as in rms_norm. Narrow types are rounded to nearest, ties to
// even.
struct RopeArgs {
  Rows<float> qkv;  // [rows, (heads + 2 * kv_heads) * dim]: keys are rotated in place, values stay,
                    // queries are used up
  int32_t heads;
  int32_t kv_heads;
  int32_t dim;
  int32_t half;  // rotary / 2; 0: no rotation in this layer
  bool adjacent_pairs;
  const float* cos;  // [rows, half]
  const float* sin;
  const float* q_norm = nullptr;  // [dim], or [heads * dim] of the whole row; null: none
  const float* k_norm = nullptr;
  bool norm_whole_row = false;
  float norm_eps = 0;
  HeadRows q;  // [rows, heads, dim], f32, bf16 or f16
  const int32_t* live_rows;
};
using RopeFn = void(const RopeArgs&, Exec&);
namespace ref {
RopeFn rope;
}
namespace cpu {
RopeFn rope;
}
namespace cuda {
RopeFn rope;  // what is normed together must fit a block's shared memory: 56 K numbers
}
RopeFn rope;  // for callers; records while exec captures

}  // namespace quire::ops
