// On a CPU the weights are read once. A chunk of tiles that is in the second cache meets the first of each row's two,
// and then the other, where sums are within reach of the largest that any thread has seen of the row: the true largest
// is no smaller, so nothing that counts is left out. What counts is added when that is known. A row that is precise
// everywhere meets each tile with both at once.
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

MatmulArgs product(const LogitsArgs& args, const ActivationRows& in, const Rows<float>& out, float scale) {
  return {.weights = args.weights,
          .in = in,
          .out = out,
          .scale = scale,
          .deterministic = args.deterministic,
          .live_rows = args.live_rows};
}

uint8_t* marks_of(const LogitsArgs& args, int64_t row) { return args.scratch.marks + row * logit_groups(args.out.dim); }

// How far below its largest sum a row's are precise.
float reach_of_sums(const LogitsArgs& args, int64_t row) { return args.reach[row] / args.scale; }
bool is_whole(const LogitsArgs& args, int64_t row) { return args.reach[row] >= kWholeReach; }

// Calls visit(first token, one past the last) for each group.
template <class Visit>
void for_each_group(int64_t vocabulary, Visit visit) {
  for (int64_t first = 0; first < vocabulary; first += kLogitGroup)
    visit(first, std::min(first + kLogitGroup, vocabulary));
}

bool is_near(const float* sums, int64_t first, int64_t end, float least) {
  return std::any_of(sums + first, sums + end, [least](float x) { return x >= least; });
}

// --- the last of it: each row's largest sum is known, and the groups within reach are among the marked ones

struct AddWithinReachOp {
  static constexpr const char* kName = "add_within_reach";
  LogitsArgs args;

  void run_row(int64_t row) const {
    if (is_whole(args, row)) return;  // it was precise at once
    const float least = args.scratch.largest[row] - reach_of_sums(args, row);
    const uint8_t* mark = marks_of(args, row);
    float* sums = args.out.row(row);
    const float* rest = args.scratch.rest.row(row);
    for_each_group(args.out.dim, [&](int64_t first, int64_t end) {
      const bool marked = *mark++ != 0;
      if (!marked || !is_near(sums, first, end, least)) return;
      for (int64_t i = first; i < end; ++i) sums[i] += rest[i];
    });
    if (args.scale == 1) return;
    for (int64_t i = 0; i < args.out.dim; ++i) sums[i] *= args.scale;
  }
};

// --- by tiles that are in the cache

class Chunk {
 public:
  Chunk(const LogitsArgs& args, int64_t first, int64_t end, Isa isa, std::byte* scratch)
      : args_(args), part_(args.weights->parts()[0]), first_(first), end_(end), isa_(isa), scratch_(scratch) {}

  // Rows of one kind that follow each other are computed together.
  void run(cpu::RowRange rows) const {
    for (int64_t row = rows.first; row < rows.end;) {
      const bool whole = is_whole(args_, row);
      const int64_t from = row;
      while (row < rows.end && is_whole(args_, row) == whole) ++row;
      whole ? multiply_by_both({from, row}) : multiply_within_reach({from, row});
    }
  }

 private:
  static constexpr int64_t kStep = 8;  // tiles that rows are asked for together

  void multiply_within_reach(cpu::RowRange rows) const {
    multiply(first_of_two(args_.in), rows, first_, end_, target(args_.out, first_));
    for (int64_t row = rows.first; row < rows.end; ++row) mark(row);
    for (int64_t tile = first_; tile < end_; tile += kStep) multiply_marked(rows, tile, std::min(tile + kStep, end_));
  }

  void multiply_by_both(cpu::RowRange rows) const {
    cpu::Target logits = target(args_.out, first_);
    logits.halves = 1;
    logits.scale = args_.scale;
    multiply(args_.in, {rows.first * 2, rows.end * 2}, first_, end_, logits);
  }

  // Threads raise a row's largest together, in any order: too small a value marks more than is needed, and no less.
  void mark(int64_t row) const {
    const int64_t column = first_ * kTileColumns, count = std::min(end_ * kTileColumns, args_.out.dim) - column;
    const float* sums = args_.out.row(row) + column;
    const RowKernels kernels = row_kernels(isa_);
    const float own = kernels.largest(sums, count);
    const std::atomic_ref<float> shared(args_.scratch.largest[row]);
    float seen = shared.load(std::memory_order_relaxed);
    while (own > seen && !shared.compare_exchange_weak(seen, own, std::memory_order_relaxed)) {
    }
    const float least = std::max(own, seen) - reach_of_sums(args_, row);
    kernels.mark_groups(sums, count, least, marks_of(args_, row) + first_);
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
      if (row > from) multiply(rest_of_two(args_.in), {from, row}, low, high, target(args_.scratch.rest, low));
    }
  }

  cpu::Target target(const Rows<float>& sums, int64_t tile) const {
    const int64_t column = tile * kTileColumns;
    cpu::Target target{};
    target.out = sums.data + column;
    target.stride = sums.stride;
    target.columns = part_.outputs - column;
    target.action[0] = target.action[1] = cpu::Action::set;
    target.scale = 1;
    return target;
  }
  void multiply(const ActivationRows& in, cpu::RowRange rows, int64_t first, int64_t end, const cpu::Target& to) const {
    const cpu::TileRun run{.tiles = part_.tiles + first * part_.tile_stride,
                           .stride = part_.tile_stride,
                           .count = end - first,
                           .inputs = part_.inputs,
                           .target = to};
    cpu::tiles_fn(isa_, part_.type, rows.end - rows.first)(run, in, rows, scratch_);
  }

  const LogitsArgs& args_;
  const PackedMatrix::Part& part_;
  int64_t first_, end_;
  Isa isa_;
  std::byte* scratch_;
};

void multiply_and_mark(const LogitsArgs& args, Exec& exec) {
  constexpr int64_t kCached = 384 << 10, kChunksPerThread = 8;
  const int64_t rows = cpu::live_rows_of(product(args, args.in, args.out, 1));
  if (rows == 0) return;
  std::fill_n(args.scratch.largest, rows, -std::numeric_limits<float>::infinity());
  const PackedMatrix::Part& part = args.weights->parts()[0];
  const int64_t tiles = part.tile_count();
  const int64_t chunk = std::clamp<int64_t>(tiles / (kChunksPerThread * exec.threads()), 1,
                                            std::max<int64_t>(1, kCached / part.tile_stride));
  exec.parallel((tiles + chunk - 1) / chunk, [&](int64_t item, int thread) {
    const Chunk tiles_of_item(args, item * chunk, std::min((item + 1) * chunk, tiles), exec.isa(),
                              exec.scratch(thread));
    constexpr int64_t kRows = cpu::kSweepRows / 2;  // each of which may be two
    for (int64_t row = 0; row < rows; row += kRows) tiles_of_item.run({row, std::min(row + kRows, rows)});
  });
}

bool has_halves(const LogitsArgs& args) {
  check(args.weights, "logits need weights");
  return cpu::halves_of(product(args, args.in, args.out, 1)) != 0;
}

void check_logits(const LogitsArgs& args) {
  const LogitsScratch& scratch = args.scratch;
  check(args.weights->parts().size() == 1, "logits come from one matrix");
  check(args.scale > 0, "logits times ", args.scale, " have no largest");
  check(args.reach, "logits at twice the precision need to know how far that reaches");
  check(scratch.largest && scratch.marks && scratch.rest.data && scratch.rest.rows >= args.out.rows &&
            scratch.rest.dim == args.out.dim && scratch.rest.stride >= args.out.dim,
        "logits of ", args.out.rows, " rows of ", args.out.dim, " at twice the precision need as much scratch, not ",
        scratch.rest.rows, " rows of ", scratch.rest.dim);
}

// --- what it means: both kinds of sums, of which each group takes one

struct ChooseOp {
  static constexpr const char* kName = "choose_logits";
  LogitsArgs args;

  void run_row(int64_t row) const {
    float* sums = args.out.row(row);
    const float* precise = args.scratch.rest.row(row);
    const float least = ref::largest(sums, args.out.dim) - reach_of_sums(args, row);
    for_each_group(args.out.dim, [&](int64_t first, int64_t end) {
      const bool chosen = is_whole(args, row) || is_near(sums, first, end, least);
      for (int64_t i = first; i < end; ++i) sums[i] = (chosen ? precise : sums)[i] * args.scale;
    });
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
  if (!has_halves(args)) return ref::matmul(product(args, args.in, args.out, args.scale), exec);
  check_logits(args);
  ref::matmul(product(args, first_of_two(args.in), args.out, 1), exec);
  ref::matmul(product(args, args.in, args.scratch.rest, 1), exec);
  launch_by_row(ChooseOp{args}, args.live_rows, std::min(args.in.rows, args.out.rows), args.out.dim, exec);
}

void cpu::logits(const LogitsArgs& args, Exec& exec) {
  if (exec.isa() == Isa::plain) return ref::logits(args, exec);
  if (!has_halves(args)) return cpu::matmul(product(args, args.in, args.out, args.scale), exec);
  check_logits(args);
  check_matmul(product(args, args.in, args.out, 1), exec);
  check_scratch(args.in.dim, exec);
  exec.launch(multiply_and_mark, args);
  launch_by_row(AddWithinReachOp{args}, args.live_rows, std::min(args.in.rows, args.out.rows),
                logit_groups(args.out.dim), exec);
}

void cuda::logits(const LogitsArgs& args, Exec& exec) {
  cuda::matmul(product(args, args.in, args.out, args.scale), exec);
}

}  // namespace quire::ops
