// out = x * weight / sqrt(mean(x^2) + eps), by row, written in the forms that the next product reads; and the sum that
// follows where a layer norms its results before they are added to the residual stream.
//
// The mean of squares is summed in kSquareLanes lanes, number i in lane i % kSquareLanes, then the lanes by halves: one
// order, so a row's bits depend on the row alone, on a CPU and on a GPU (the bits of a NaN are not fixed). With so many
// lanes hardly a sum waits for another, whatever the machine. On a GPU a live count beyond the room counts as the room.
#pragma once
#include <cstdint>

#include "base/exec.h"
#include "base/tensor.h"
#include "ops/activations.h"

namespace quire::ops {

inline constexpr int64_t kSquareLanes = 1024;

struct RmsNormArgs {
  Rows<const float> in;
  const float* weight;  // [dim]
  float eps;
  ActivationRows out;        // its f32 may be where in lies
  const int32_t* live_rows;  // read when the operation runs
};
using RmsNormFn = void(const RmsNormArgs&, Exec&);
namespace ref {
RmsNormFn rms_norm;
}
namespace cpu {
RmsNormFn rms_norm;
}
namespace cuda {
RmsNormFn rms_norm;
}
RmsNormFn rms_norm;  // for callers; records while exec captures

// out += scale * in, the product rounded by itself.
struct AddRowsArgs {
  Rows<const float> in;
  float scale;
  Rows<float> out;
  const int32_t* live_rows;  // read when the operation runs
};
using AddRowsFn = void(const AddRowsArgs&, Exec&);
namespace cpu {
AddRowsFn add_rows;
}
namespace cuda {
AddRowsFn add_rows;
}
AddRowsFn add_rows;  // for callers; records while exec captures

}  // namespace quire::ops
