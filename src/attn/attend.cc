// The door of attention: what every implementation refuses, before any work, with the whole problem in the text; and
// the pick of the implementation for callers.
#include <cmath>

#include "attn/attention.h"
#include "attn/cpu_choice.h"

namespace quire::attn {
namespace {

// The whole problem, made into text only when a check fails: every call passes here.
struct WholeAttention {
  const AttendArgs& args;
};
std::string to_string(const WholeAttention& whole) {
  const AttendArgs& args = whole.args;
  const kv::LayerKv& kv = args.kv;
  return cat(" in attention over ", args.keys.set, ": q ", args.q.type, " [", args.q.rows, ", ", args.q.heads, ", ",
             args.q.dim, "], out ", args.out.type, " [", args.out.rows, ", ", args.out.heads, ", ", args.out.dim,
             "], kv ", kv.type, " of ", kv.kv_heads, " heads, key dim ", kv.key_dim, ", value dim ", kv.value_dim,
             kv.latent() ? ", latent" : "", ", page size ", args.keys.page_size.tokens(), ", scale ", args.scale,
             ", softcap ", args.softcap, ", window ", args.window, args.sinks ? ", sinks" : "");
}

// Types, dims and heads are the kernel's choice to refuse; what none computes, the reference does not either.
void check_problem(const AttendArgs& args) {
  choose({.query_type = args.q.type,
          .kv_type = args.kv.type,
          .heads = args.q.heads,
          .kv_heads = args.kv.kv_heads,
          .key_dim = args.kv.key_dim,
          .value_dim = args.kv.value_dim},
         Isa::plain);
  check(args.out.type != Dtype::f8e4m3, "unsupported output type ", args.out.type, WholeAttention{args});
  check(!args.kv.latent() || (args.kv.kv_heads == 1 && args.kv.value_dim <= args.kv.key_dim),
        "a latent layer has one kv head, whose value is the front of its key", WholeAttention{args});
}

void check_shapes(const AttendArgs& args) {
  const kv::LayerKv& kv = args.kv;
  check(args.q.dim == kv.key_dim, "queries and keys differ in dim", WholeAttention{args});
  check(args.out.dim == kv.value_dim, "outputs and values differ in dim", WholeAttention{args});
  check(args.out.rows == args.q.rows && args.out.heads == args.q.heads, "queries and outputs differ in shape",
        WholeAttention{args});
  check(args.q.rows >= args.keys.query_rows, "a step of this shape has up to ", args.keys.query_rows, " query rows",
        WholeAttention{args});
  check(args.q.rows >= 0 && args.q.row_stride >= int64_t{args.q.heads} * args.q.dim &&
            args.out.row_stride >= int64_t{args.out.heads} * args.out.dim,
        "rows overlap", WholeAttention{args});
  check(kv.key_stride >= int64_t{kv.kv_heads} * kv.key_dim && kv.value_stride >= int64_t{kv.kv_heads} * kv.value_dim,
        "keys or values of adjacent slots overlap", WholeAttention{args});
  check(kv.slots % args.keys.page_size.tokens() == 0, "the store does not hold whole pages", WholeAttention{args});
}

void check_numbers(const AttendArgs& args) {
  check(std::isfinite(args.scale), "scale is not finite", WholeAttention{args});
  check(std::isfinite(args.softcap) && args.softcap >= 0, "softcap is negative or not finite", WholeAttention{args});
  check(args.window >= -1, "window is below -1", WholeAttention{args});
  check(args.window == -1 || args.keys.set != Set::encoder, "encoder keys have no window", WholeAttention{args});
  check(std::isfinite(args.kv.key_scale) && args.kv.key_scale > 0 && std::isfinite(args.kv.value_scale) &&
            args.kv.value_scale > 0,
        "a scale of keys or values is not positive and finite", WholeAttention{args});
}

// The work division and the workspace were made for the arena's limits.
void check_limits(const AttendArgs& args) {
  check(args.arena != nullptr, "no arena", WholeAttention{args});
  const Limits& limits = args.arena->limits();
  check(args.keys.page_size == limits.page_size, "the arena's page size is ", limits.page_size.tokens(),
        WholeAttention{args});
  check(args.q.heads <= limits.heads && args.kv.value_dim <= limits.value_dim, "the arena's workspace is for ",
        limits.heads, " heads of value dim ", limits.value_dim, WholeAttention{args});
}

void check_addresses(const AttendArgs& args) {
  check(args.q.rows == 0 || (args.q.data != nullptr && args.out.data != nullptr), "no queries or outputs",
        WholeAttention{args});
  check(args.kv.keys != nullptr && args.kv.values != nullptr, "no keys or values", WholeAttention{args});
}

}  // namespace

void check_args(const AttendArgs& args) {
  check_problem(args);
  check_shapes(args);
  check_numbers(args);
  check_limits(args);
  check_addresses(args);
}

void check_rows(const AttendArgs& args) {
  const int32_t live = *args.keys.live;
  const int32_t rows = live > 0 ? args.keys.cu_q[live] : 0;
  check(rows <= args.q.rows, "the step has ", rows, " query rows", WholeAttention{args});
}

void attend(const AttendArgs& args, Exec& exec) { (exec.stream() ? cuda::attend : cpu::attend)(args, exec); }

}  // namespace quire::attn
