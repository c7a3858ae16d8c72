// The fast merge: rows over the team's threads, elements in f32 loops without calls, which compilers vectorise.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attn/merge.h"
#include "kv/convert.h"

namespace quire::attn {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
constexpr int64_t kRowsPerItem = 16;  // enough work to outweigh handing an item to a thread
constexpr int32_t kStretch = 256;     // elements widened at a time; most heads are one stretch

struct Weights {
  float a, b;  // sum to 1; 0 where the part is empty, and both 0 where both are
  float lse;
};

Weights weigh(float lse_a, float lse_b) {
  const float a = std::isinf(lse_a) ? kEmpty : lse_a;
  const float b = std::isinf(lse_b) ? kEmpty : lse_b;
  const float top = std::max(a, b);
  if (top == kEmpty) return {0, 0, kEmpty};
  const float share_a = std::exp(a - top);
  const float share_b = std::exp(b - top);
  const float sum = share_a + share_b;
  return {share_a / sum, share_b / sum, top + std::log(sum)};
}

void add_weighted(const ConstHeadRows& part, int64_t row, int32_t head, int32_t first, int32_t count, float weight,
                  float* sum) {
  if (weight == 0) return;  // an empty part may hold anything
  alignas(64) float values[kStretch];
  const std::byte* source = part.at(row, head) + int64_t{first} * size_of(part.type);
  kv::convert_elements(part.type, source, Dtype::f32, reinterpret_cast<std::byte*>(values), count, 1);
  for (int32_t d = 0; d < count; ++d) sum[d] += weight * values[d];
}

void merge_head(const MergeArgs& args, int64_t row, int32_t head) {
  const int64_t index = head * args.out.rows + row;
  const Weights weights = weigh(args.lse_a[index], args.lse_b[index]);
  for (int32_t first = 0; first < args.out.dim; first += kStretch) {
    const int32_t count = std::min(kStretch, args.out.dim - first);
    alignas(64) float sum[kStretch] = {};
    add_weighted(args.a, row, head, first, count, weights.a, sum);
    add_weighted(args.b, row, head, first, count, weights.b, sum);
    std::byte* target = args.out.at(row, head) + int64_t{first} * size_of(args.out.type);
    kv::convert_elements(Dtype::f32, reinterpret_cast<const std::byte*>(sum), args.out.type, target, count, 1);
  }
  if (args.lse) args.lse[index] = weights.lse;
}

void run(const MergeArgs& args, Exec& exec) {
  exec.parallel((args.out.rows + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t item, int) {
    const int64_t end = std::min(args.out.rows, (item + 1) * kRowsPerItem);
    for (int64_t row = item * kRowsPerItem; row < end; ++row)
      for (int32_t head = 0; head < args.out.heads; ++head) merge_head(args, row, head);
  });
}

}  // namespace

namespace cpu {
void merge(const MergeArgs& args, Exec& exec) {
  check_args(args);
  exec.launch(run, args);
}
}  // namespace cpu

}  // namespace quire::attn
