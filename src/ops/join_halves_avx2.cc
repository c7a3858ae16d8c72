#include "base/simd/avx2.h"
#include "ops/join_halves.h"

namespace quire::ops {

void avx2::join_halves(const Halves& halves, int64_t columns, float* out) {
  using simd::Avx2;
  const int64_t whole = columns / Avx2::kWidth * Avx2::kWidth;
  for (int64_t i = 0; i < whole; i += Avx2::kWidth) join_at<Avx2>(halves, i, columns, out);
  if (whole == columns) return;
  // The last few through registers of their own, so that they get the same arithmetic.
  float first[2 * Avx2::kWidth] = {}, second[2 * Avx2::kWidth] = {}, last[Avx2::kWidth] = {};
  for (int64_t i = whole; i < columns; ++i) {
    const int64_t at = i - whole;
    first[at] = halves.first[i], second[at] = halves.second[i], last[at] = out[i];
    if (halves.store != Store::silu_mul) continue;
    first[Avx2::kWidth + at] = halves.first[columns + i], second[Avx2::kWidth + at] = halves.second[columns + i];
  }
  join_at<Avx2>({first, second, halves.store}, 0, Avx2::kWidth, last);
  for (int64_t i = whole; i < columns; ++i) out[i] = last[i - whole];
}

}  // namespace quire::ops
