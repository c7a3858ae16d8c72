// Stream-K: how split-KV kernels share out their work. The units of all sequences are one line, one sequence after the
// other, and every worker has an equal stretch of it: its units are [begin(worker), begin(worker + 1)).
#pragma once
#include <algorithm>
#include <cstdint>

namespace quire::attn {

// Of so many that begin one after the other, the last that begins at or before a place.
template <class BeginsBy>
constexpr int32_t last_that(int32_t count, const BeginsBy& begins_by) {
  int32_t low = 0, high = count;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (begins_by(middle) ? low : high) = middle;
  }
  return low;
}

struct StreamK {
  int32_t count, each, longer;  // `count` workers have `each` units, the first `longer` ones one more

  // As many as `most`, but none that is empty.
  static constexpr StreamK of(int32_t total, int32_t most) {
    const int32_t count = std::min(total, most), each = count ? total / count : 0;
    return {count, each, total - each * count};
  }
  constexpr int32_t begin(int32_t worker) const { return worker * each + std::min(worker, longer); }
  constexpr int32_t worker_of(int32_t unit) const {
    const int32_t in_longer = longer * (each + 1);
    return unit < in_longer ? unit / (each + 1) : longer + (unit - in_longer) / each;
  }
};

}  // namespace quire::attn
