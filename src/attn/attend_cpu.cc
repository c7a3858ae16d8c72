// cpu::attend: checks at the door, then two recorded operations. The first cuts the step into items and gives them to
// the team; the second folds what the items of split sequences left behind.
#include "attn/attend_cpu.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "attn/attend_tile.h"

namespace quire::attn::cpu {
namespace {

struct AttendOp {
  AttendArgs args;
  Choice choice;
  Kernel kernel;
};

int32_t most_queries(const KeyView& keys, int32_t live) {
  int32_t most = 0;
  for (int32_t b = 0; b < live; ++b) most = std::max(most, keys.cu_q[b + 1] - keys.cu_q[b]);
  return most;
}

// Several kv heads in an item read a token's heads in one stretch; but a tile has so many rows only, and every thread
// should find a few items.
int32_t kv_heads_in_item(const Task& task, int64_t tiles, int threads) {
  const int32_t kv_heads = task.args.kv.kv_heads;
  if (task.choice.head_chunk < task.group) return 1;
  const int32_t positions = std::clamp(most_queries(task.args.keys, task.live), 1, task.choice.positions);
  const int32_t rows = positions * task.group;
  int32_t best = 1;
  for (int32_t n = 2; n <= kv_heads && n * rows <= tile_rows(task.args.kv.key_dim); ++n)
    if (kv_heads % n == 0 && tiles * (kv_heads / n) >= int64_t{4} * threads) best = n;
  return best;
}

void clear_rows(const AttendArgs& args, int64_t first) {
  const size_t head_bytes = static_cast<size_t>(args.out.dim) * static_cast<size_t>(size_of(args.out.type));
  for (int64_t row = first; row < args.out.rows; ++row)
    for (int32_t head = 0; head < args.out.heads; ++head) {
      std::memset(args.out.at(row, head), 0, head_bytes);
      if (args.lse) args.lse[head * args.q.rows + row] = -std::numeric_limits<float>::infinity();
    }
}

Task task_of(const AttendOp& op) {
  return {.args = op.args,
          .choice = op.choice,
          .live = *op.args.keys.live,
          .group = op.args.q.heads / op.args.kv.kv_heads,
          .kv_heads = 1,
          .head_groups = 1};
}

void items_op(const AttendOp& op, Exec& exec) {
  const KeyView& keys = op.args.keys;
  Task task = task_of(op);
  clear_rows(op.args, task.live > 0 ? keys.cu_q[task.live] : 0);
  if (task.live <= 0) return;
  const int64_t tiles = keys.cu_items[task.live];
  task.kv_heads = kv_heads_in_item(task, tiles, exec.threads());
  const int32_t chunks = (task.group + task.choice.head_chunk - 1) / task.choice.head_chunk;
  task.head_groups = op.args.kv.kv_heads / task.kv_heads * chunks;

  const int64_t items = tiles * task.head_groups;
  // Late tiles of a causal sequence see the most keys: from the back, the longest items start first.
  exec.parallel(items, [&](int64_t item, int thread) { op.kernel.item(task, items - 1 - item, exec.scratch(thread)); });
}

void fold_op(const AttendOp& op, Exec& exec) {
  const Task task = task_of(op);
  if (task.live <= 0 || op.args.keys.cu_splits[task.live] <= 0) return;
  exec.parallel(int64_t{task.live} * op.args.kv.kv_heads,
                [&](int64_t item, int thread) { op.kernel.fold(task, item, exec.scratch(thread)); });
}

Kernel kernel_for(Isa isa, Dtype kv_type) {
  switch (isa) {
    case Isa::plain:
      return plain_kernel(kv_type);
#if defined(__x86_64__)
    case Isa::avx2:
    case Isa::avxvnni:
      return avx2_kernel(kv_type);
    case Isa::avx512:
    case Isa::avx512vnni:
      return avx512_kernel(kv_type);
    case Isa::avx512bf16:
      return avx512bf16_kernel();
    case Isa::amx:
      return amx_kernel();
#else
    default:
      break;
#endif
  }
  throw CheckError(cat("no kernel for instruction set ", to_string(isa)));
}

}  // namespace

size_t scratch_needed(const Choice& choice, int32_t key_dim, int32_t value_dim) {
  TileState measured;
  const int32_t rows = std::max(tile_rows(key_dim), choice.positions * choice.head_chunk);
  return carve(measured, nullptr, rows, key_dim, value_dim);
}

namespace {

AttendOp checked_op(const AttendArgs& args, const Exec& exec) {
  check_args(args);
  if (!exec.capturing()) check_rows(args);
  const Problem problem{.query_type = args.q.type,
                        .kv_type = args.kv.type,
                        .heads = args.q.heads,
                        .kv_heads = args.kv.kv_heads,
                        .key_dim = args.kv.key_dim,
                        .value_dim = args.kv.value_dim};
  const Choice choice = choose(problem, exec.isa());
  const Limits& limits = args.arena->limits();
  check(limits.device == Device::cpu, problem, " on the cpu, and the arena is made for ", limits);
  check(choice.positions == tile_positions(limits.heads, limits.kv_heads, limits.key_dim) &&
            problem.heads <= limits.heads && problem.value_dim <= limits.value_dim,
        "the metadata was cut for other heads: ", problem, ", but ", limits);
  check(scratch_needed(choice, args.kv.key_dim, args.kv.value_dim) <= exec.scratch_bytes(), problem, " needs ",
        scratch_needed(choice, args.kv.key_dim, args.kv.value_dim), " bytes of scratch a thread, of ",
        exec.scratch_bytes());
  return {args, choice, kernel_for(choice.isa, args.kv.type)};
}

}  // namespace

void attend_items(const AttendArgs& args, Exec& exec) { exec.launch(items_op, checked_op(args, exec)); }
void combine_splits(const AttendArgs& args, Exec& exec) { exec.launch(fold_op, checked_op(args, exec)); }

void attend(const AttendArgs& args, Exec& exec) {
  const AttendOp op = checked_op(args, exec);
  exec.launch(items_op, op);
  exec.launch(fold_op, op);
}

}  // namespace quire::attn::cpu
