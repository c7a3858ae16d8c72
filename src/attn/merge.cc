// The door of the merge, and the pick of its implementation for callers.
#include "attn/merge.h"

namespace quire::attn {
namespace {

template <class Byte>
std::string shape_of(const BasicHeadRows<Byte>& part) {
  return cat(part.type, " [", part.rows, ", ", part.heads, ", ", part.dim, "] by ", part.row_stride);
}

// The whole problem, made into text only when a check fails.
struct WholeMerge {
  const MergeArgs& args;
};
std::string to_string(const WholeMerge& whole) {
  return cat("a ", shape_of(whole.args.a), " and b ", shape_of(whole.args.b), " into ", shape_of(whole.args.out));
}

template <class Byte>
void check_part(const BasicHeadRows<Byte>& part, const MergeArgs& args) {
  const bool is_like_out = part.rows == args.out.rows && part.heads == args.out.heads && part.dim == args.out.dim;
  const bool is_sound = part.type != Dtype::f8e4m3 && part.row_stride >= int64_t{part.heads} * part.dim;
  check(is_like_out && is_sound, "cannot merge ", WholeMerge{args});
}

}  // namespace

void check_args(const MergeArgs& args) {
  check_part(args.a, args);
  check_part(args.b, args);
  check_part(args.out, args);
  check(args.lse_a && args.lse_b, "a merge needs the log-sum-exp of both parts");
}

void merge(const MergeArgs& args, Exec& exec) { (exec.stream() ? cuda::merge : cpu::merge)(args, exec); }

}  // namespace quire::attn
