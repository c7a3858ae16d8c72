// On a CPU the weights are read once. A chunk of tiles that is in the second cache meets the first of each row's two,
// and then the other, where the coarse logits are near the largest that any thread has seen of the row: the true
// largest is no smaller, so nothing that counts is left out. What counts is added when that is known.
#include "ops/logits.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/check.h"
#include "ops/by_row.h"
#include "ops/matmul_task.h"

namespace quire::ops {
namespace {

static_assert(kLogitGroup == kTileColumns, "groups of logits are tiles of weights");

MatmulArgs product(const LogitsArgs& args, const ActivationRows& in, const Rows<float>& out) {
  return {.weights = args.weights,
          .in = in,
          .out = out,
          .scale = args.scale,
          .deterministic = args.deterministic,
          .live_rows = args.live_rows};
}

uint8_t* marks_of(const LogitsArgs& args, int64_t row) { return args.scratch.marks + row * logit_groups(args.out.dim); }

// --- the last of it: each row's largest coarse logit is known, and groups near it are among the marked ones

struct AddNearLargestOp {
  static constexpr const char* kName = "add_near_largest";
  LogitsArgs args;

  void run_row(int64_t row) const {
    const float least = args.scratch.largest[row] - kNearLargest;
    const uint8_t* marks = marks_of(args, row);
    float* logits = args.out.row(row);
    const float* rest = args.scratch.rest.row(row);
    const int64_t groups = logit_groups(args.out.dim);
    for (int64_t group = 0; group < groups; ++group) {
      if (!marks[group]) continue;
      const int64_t first = group * kLogitGroup, end = std::min(first + kLogitGroup, args.out.dim);
      if (!std::any_of(logits + first, logits + end, [least](float x) { return x >= least; })) continue;
      for (int64_t i = first; i < end; ++i) logits[i] += rest[i];
    }
  }
};

void launch_add(const LogitsArgs& args, Exec& exec) {
  launch_by_row(AddNearLargestOp{args}, args.live_rows, std::min(args.in.rows, args.out.rows),
                logit_groups(args.out.dim), exec);
}

// --- by tiles that are in the cache

class Chunk {
 public:
  Chunk(const LogitsArgs& args, int64_t first, int64_t end, Isa isa, std::byte* scratch)
      : args_(args), part_(args.weights->parts()[0]), first_(first), end_(end), isa_(isa), scratch_(scratch) {}

  void run(cpu::RowRange rows) const {
    multiply(first_of_two(args_.in), rows, first_, end_, args_.out);
    for (int64_t row = rows.first; row < rows.end; ++row) mark(row);
    for (int64_t tile = first_; tile < end_; tile += kStep) multiply_marked(rows, tile, std::min(tile + kStep, end_));
  }

 private:
  static constexpr int64_t kStep = 8;  // tiles that rows are asked for together

  // Threads raise a row's largest together, in any order: too small a value marks more than is needed, and no less.
  void mark(int64_t row) const {
    const int64_t column = first_ * kTileColumns, count = std::min(end_ * kTileColumns, args_.out.dim) - column;
    const float* logits = args_.out.row(row) + column;
    const RowKernels kernels = row_kernels(isa_);
    const float own = kernels.largest(logits, count);
    const std::atomic_ref<float> shared(args_.scratch.largest[row]);
    float seen = shared.load(std::memory_order_relaxed);
    while (own > seen && !shared.compare_exchange_weak(seen, own, std::memory_order_relaxed)) {
    }
    kernels.mark_groups(logits, count, std::max(own, seen) - kNearLargest, marks_of(args_, row) + first_);
  }

  // Rows that follow each other and have marks among tiles [first, end) are computed together, from the first to the
  // last marked tile.
  void multiply_marked(cpu::RowRange rows, int64_t first, int64_t end) const {
    const auto marked = [&](int64_t row, int64_t tile) { return marks_of(args_, row)[tile] != 0; };
    for (int64_t row = rows.first; row < rows.end; ++row) {
      const int64_t from = row;
      int64_t low = end, high = first;
      for (; row < rows.end; ++row) {
        int64_t tile = first, last = end;
        while (tile < end && !marked(row, tile)) ++tile;
        if (tile == end) break;
        while (!marked(row, last - 1)) --last;
        low = std::min(low, tile);
        high = std::max(high, last);
      }
      if (row > from) multiply(rest_of_two(args_.in), {from, row}, low, high, args_.scratch.rest);
    }
  }

  void multiply(const ActivationRows& in, cpu::RowRange rows, int64_t first, int64_t end, const Rows<float>& to) const {
    const int64_t column = first * kTileColumns;
    cpu::Target target{};
    target.out = to.data + column;
    target.stride = to.stride;
    target.columns = part_.outputs - column;
    target.action[0] = target.action[1] = cpu::Action::set;
    target.scale = args_.scale;
    const cpu::TileRun run{.tiles = part_.tiles + first * part_.tile_stride,
                           .stride = part_.tile_stride,
                           .count = end - first,
                           .inputs = part_.inputs,
                           .target = target};
    cpu::tiles_fn(isa_, part_.type, rows.end - rows.first)(run, in, rows, scratch_);
  }

  const LogitsArgs& args_;
  const PackedMatrix::Part& part_;
  int64_t first_, end_;
  Isa isa_;
  std::byte* scratch_;
};

void multiply_and_mark(const LogitsArgs& args, Exec& exec) {
  constexpr int64_t kCached = 256 << 10, kChunksPerThread = 8;
  const int64_t rows = cpu::live_rows_of(product(args, args.in, args.out));
  std::fill_n(args.scratch.largest, rows, -std::numeric_limits<float>::infinity());
  const PackedMatrix::Part& part = args.weights->parts()[0];
  const int64_t tiles = part.tile_count();
  const int64_t chunk =
      std::clamp<int64_t>(tiles / (kChunksPerThread * exec.threads()), 1, std::max(1L, kCached / part.tile_stride));
  exec.parallel((tiles + chunk - 1) / chunk, [&](int64_t item, int thread) {
    const Chunk tiles_of_item(args, item * chunk, std::min((item + 1) * chunk, tiles), exec.isa(),
                              exec.scratch(thread));
    for (int64_t row = 0; row < rows; row += cpu::kSweepRows)
      tiles_of_item.run({row, std::min(row + cpu::kSweepRows, rows)});
  });
}

void check_logits(const LogitsArgs& args) {
  const LogitsScratch& scratch = args.scratch;
  check(args.weights && args.weights->parts().size() == 1, "logits come from one matrix");
  check(scratch.largest && scratch.marks && scratch.rest.data && scratch.rest.rows >= args.out.rows &&
            scratch.rest.dim == args.out.dim && scratch.rest.stride >= args.out.dim,
        "logits of ", args.out.rows, " rows of ", args.out.dim, " at twice the precision need as much scratch, not ",
        scratch.rest.rows, " rows of ", scratch.rest.dim);
}

struct MarkOp {
  static constexpr const char* kName = "mark_near_largest";
  LogitsArgs args;

  void run_row(int64_t row) const {
    const Rows<float>& out = args.out;
    args.scratch.largest[row] = ref::largest(out.row(row), out.dim);
    ref::mark_groups(out.row(row), out.dim, args.scratch.largest[row] - kNearLargest, marks_of(args, row));
  }
};

}  // namespace

float ref::largest(const float* x, int64_t count) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, x[i]);  // which NaN does not replace
  return largest;
}

void ref::mark_groups(const float* x, int64_t count, float least, uint8_t* marks) {
  std::fill_n(marks, logit_groups(count), uint8_t{0});
  for (int64_t i = 0; i < count; ++i)
    if (x[i] >= least) marks[i / kLogitGroup] = 1;
}

void ref::logits(const LogitsArgs& args, Exec& exec) {
  if (!args.in.forms.q8x2) return ref::matmul(product(args, args.in, args.out), exec);
  check_logits(args);
  ref::matmul(product(args, first_of_two(args.in), args.out), exec);
  ref::matmul(product(args, rest_of_two(args.in), args.scratch.rest), exec);
  launch_by_row(MarkOp{args}, args.live_rows, std::min(args.in.rows, args.out.rows), args.out.dim, exec);
  launch_add(args, exec);
}

void cpu::logits(const LogitsArgs& args, Exec& exec) {
  if (exec.isa() == Isa::plain) return ref::logits(args, exec);
  if (!args.in.forms.q8x2) return cpu::matmul(product(args, args.in, args.out), exec);
  check_logits(args);
  check_matmul(product(args, args.in, args.out), exec);
  check_scratch(args.in.dim, exec);
  exec.launch(multiply_and_mark, args);
  launch_add(args, exec);
}

void cuda::logits(const LogitsArgs& args, Exec& exec) { cuda::matmul(product(args, args.in, args.out), exec); }

}  // namespace quire::ops
