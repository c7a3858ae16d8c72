// The reference of the merge, in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attn/merge.h"

namespace quire::attn {
namespace {

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

double lse_of(float lse) { return std::isinf(lse) ? kNoKeys : lse; }

// What a part adds to an element; an empty part adds nothing, whatever lies there.
double share(const ConstHeadRows& part, int64_t row, int32_t head, int32_t d, double weight) {
  return weight == 0 ? 0 : weight * load_element(part.type, part.at(row, head), d);
}

void merge_row(const MergeArgs& args, int64_t row, int32_t head) {
  const int64_t index = head * args.out.rows + row;
  const double lse_a = lse_of(args.lse_a[index]);
  const double lse_b = lse_of(args.lse_b[index]);
  const double top = std::max(lse_a, lse_b);
  const bool both_empty = top == kNoKeys;
  const double weight_a = both_empty ? 0 : std::exp(lse_a - top);
  const double weight_b = both_empty ? 0 : std::exp(lse_b - top);
  const double sum = both_empty ? 1 : weight_a + weight_b;
  for (int32_t d = 0; d < args.out.dim; ++d) {
    const double mixed = share(args.a, row, head, d, weight_a) + share(args.b, row, head, d, weight_b);
    store_element(args.out.type, args.out.at(row, head), d, static_cast<float>(mixed / sum));
  }
  if (args.lse) args.lse[index] = static_cast<float>(top + std::log(sum));
}

void merge_all(const MergeArgs& args, Exec&) {
  for (int64_t row = 0; row < args.out.rows; ++row)
    for (int32_t head = 0; head < args.out.heads; ++head) merge_row(args, row, head);
}

}  // namespace

namespace ref {
void merge(const MergeArgs& args, Exec& exec) {
  check_args(args);
  exec.launch(merge_all, args);
}
}  // namespace ref

}  // namespace quire::attn
