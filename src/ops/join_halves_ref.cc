#include "ops/fused_scalar.h"
#include "ops/join_halves.h"

namespace quire::ops {

void ref::join_halves(const Halves& halves, int64_t columns, float* out) {
  for (int64_t i = 0; i < columns; ++i) join_at<FusedScalar>(halves, i, columns, out);
}

}  // namespace quire::ops
