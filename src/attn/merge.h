// The merge of two attention results over disjoint keys (cascade): each row and head weighted by its log-sum-exp.
//
//   m = max(a, b)   out = (e^(a-m) outA + e^(b-m) outB) / (e^(a-m) + e^(b-m))   lse = m + ln(e^(a-m) + e^(b-m))
//
// An infinite lse of either sign means that the part saw no key; its rows of out are not used. Two such parts give
// (0, -inf), never NaN. For parts that come from kernels outside quire: quire's own kernels walk both halves of a tree
// in one call.
//
// Memory   allocates nothing; records into a graph while exec captures.
// Errors   unequal shapes, or a type other than f32, f16 and bf16, throw CheckError that prints all three.
#pragma once
#include "base/exec.h"
#include "base/tensor.h"

namespace quire::attn {

struct MergeArgs {
  ConstHeadRows a, b;  // [rows, heads, dim]
  const float* lse_a;  // [heads, rows]
  const float* lse_b;
  HeadRows out;  // may be a or b
  float* lse;    // [heads, rows]; may be lse_a or lse_b; null: not wanted
};
using MergeFn = void(const MergeArgs&, Exec&);
namespace ref {
MergeFn merge;
}
namespace cpu {
MergeFn merge;
}
namespace cuda {
MergeFn merge;  // all addresses are the device's, or pinned
}
MergeFn merge;  // for callers: on the GPU when exec has a stream

// The checks of the door, shared by all implementations.
void check_args(const MergeArgs& args);

}  // namespace quire::attn
