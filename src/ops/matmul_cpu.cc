// Cuts a product into chunks of column tiles, which threads take, and a chunk into runs for the kernels.
#include <algorithm>

#include "base/check.h"
#include "ops/matmul.h"
#include "ops/matmul_task.h"

namespace quire::ops::cpu {
namespace {

using Part = PackedMatrix::Part;
using Join = PackedMatrix::Join;

}  // namespace

TilesFn* tiles_fn(Isa isa, BlockType type, int64_t rows) {
#if defined(__x86_64__)
  if (is_dense(type)) return isa >= Isa::avx512 ? avx512_dense_tiles(type) : avx2_tiles(type);
  if (isa == Isa::avx2) return avx2_tiles(type);
  if (isa == Isa::avxvnni) return avxvnni_tiles(type);
  if (isa == Isa::avx512) return avx2_tiles(type);
  constexpr int64_t kAmxRows = 64;  // with fewer, a tile's weights are unpacked for too little
  return isa == Isa::amx && rows >= kAmxRows ? amx_tiles(type) : vnni_tiles(type);
#else
  (void)type, (void)rows;
  throw CheckError(cat("no matrix products for instruction set ", to_string(isa)));
#endif
}

namespace {

// A unit is what a thread takes at least: a column tile, or a gate tile with its up tile.
int64_t units_of(const PackedMatrix& weights, Store store) {
  if (store == Store::silu_mul) return weights.parts()[0].tile_count();
  int64_t units = 0;
  for (const Part& part : weights.parts()) units += part.tile_count();
  return units;
}

// Units in an item. A few chunks for each thread, and of no more tiles than stay in L2 while groups of rows pass them.
// With few rows a product streams through memory, and chunks are at least long enough for that.
int64_t chunk_of(const MatmulArgs& args, int64_t rows, int64_t units, int threads) {
  constexpr int64_t kChunksPerThread = 8, kCached = 384 << 10, kStream = 32 << 10, kManyRows = 16;
  const int64_t unit_bytes = static_cast<int64_t>(args.weights->bytes()) / units;
  const int64_t least = rows < kManyRows ? (kStream + unit_bytes - 1) / unit_bytes : 1;
  const int64_t most = std::max(least, kCached / unit_bytes);
  return std::clamp(units / (kChunksPerThread * threads), least, most);
}

class Chunk {
 public:
  Chunk(const MatmulArgs& args, int64_t all_rows, int halves, RowRange rows, Isa isa, std::byte* scratch)
      : args_(args), all_rows_(all_rows), halves_(halves), rows_(rows), isa_(isa), scratch_(scratch) {}

  void run(int64_t first, int64_t end) const {
    const auto parts = args_.weights->parts();
    if (args_.store == Store::silu_mul) return run_pairs(parts[0], parts[1], first, end);
    for (const Part& part : parts) {
      const int64_t tiles = part.tile_count();
      if (first < tiles && end > 0) run_tiles(part, std::max<int64_t>(first, 0), std::min(end, tiles));
      first -= tiles;
      end -= tiles;
    }
  }

 private:
  void run_tiles(const Part& part, int64_t first, int64_t end) const {
    const Action action = args_.store == Store::add ? Action::add : Action::set;
    const float* bias = bias_of(part, first);
    compute(part, {.tiles = part.tiles + first * part.tile_stride,
                   .stride = part.tile_stride,
                   .count = end - first,
                   .inputs = part.inputs,
                   .target = target(part.first_output, part, first, false, {action, action}, {bias, bias})});
  }

  void run_pairs(const Part& gate, const Part& up, int64_t first, int64_t end) const {
    if (gate.type == up.type) return run_alternating(gate, up, first, end - first);
    for (int64_t i = first; i < end; ++i) {
      run_one(gate, i, Action::keep);
      run_one(up, i, Action::silu_mul_kept);
    }
  }

  // Both have one type, so their tiles are one run of equal steps.
  void run_alternating(const Part& gate, const Part& up, int64_t first, int64_t pairs) const {
    compute(gate, {.tiles = gate.tiles + first * gate.tile_stride,
                   .stride = gate.tile_stride / 2,
                   .count = pairs * 2,
                   .inputs = gate.inputs,
                   .target = target(0, gate, first, true, {Action::keep, Action::silu_mul_kept},
                                    {bias_of(gate, first), bias_of(up, first)})});
  }

  void run_one(const Part& part, int64_t tile, Action action) const {
    const float* bias = bias_of(part, tile);
    compute(part, {.tiles = part.tiles + tile * part.tile_stride,
                   .stride = part.tile_stride,
                   .count = 1,
                   .inputs = part.inputs,
                   .target = target(0, part, tile, false, {action, action}, {bias, bias})});
  }

  struct Actions {
    Action even, odd;
  };
  struct Biases {
    const float *even, *odd;
  };
  Target target(int64_t first_output, const Part& part, int64_t tile, bool alternating, Actions actions,
                Biases biases) const {
    const int64_t column = tile * kTileColumns;
    return {.out = args_.out.data + first_output + column,
            .stride = args_.out.stride,
            .columns = part.outputs - column,
            .alternating = alternating,
            .halves = halves_,
            .action = {actions.even, actions.odd},
            .bias = {biases.even, biases.odd},
            .scale = args_.scale};
  }
  const float* bias_of(const Part& part, int64_t tile) const {
    return args_.bias ? args_.bias + part.first_output + tile * kTileColumns : nullptr;
  }
  void compute(const Part& part, const TileRun& run) const {
    tiles_fn(isa_, part.type, all_rows_)(run, args_.in, rows_, scratch_);
  }

  const MatmulArgs& args_;
  int64_t all_rows_;
  int halves_;
  RowRange rows_;
  Isa isa_;
  std::byte* scratch_;
};

void matmul_op(const MatmulArgs& args, Exec& exec) {
  const int halves = halves_of(args);
  const int64_t rows = live_rows_of(args) << halves;
  if (rows == 0) return;
  const int64_t units = units_of(*args.weights, args.store);
  const int64_t chunk = chunk_of(args, rows, units, exec.threads());
  exec.parallel((units + chunk - 1) / chunk, [&](int64_t item, int thread) {
    const int64_t first = item * chunk, end = std::min(first + chunk, units);
    for (int64_t row = 0; row < rows; row += kSweepRows)
      Chunk(args, rows, halves, {row, std::min(row + kSweepRows, rows)}, exec.isa(), exec.scratch(thread))
          .run(first, end);
  });
}

void check_forms(Forms given, Forms asked) {
  check(!asked.f32 || given.f32, "the activations lack a form that the weights need: f32");
  check(!asked.bf16 || given.bf16, "the activations lack a form that the weights need: bf16");
  check(!asked.q8 || given.quantised(), "the activations lack a form that the weights need: q8");
  check(!asked.q8 || !given.q8x2 || !asked.f32, "dense and quantised weights that are joined read q8, not q8x2");
}

}  // namespace

void check_matmul(const MatmulArgs& args, const Exec& exec) {
  check(args.weights && !args.weights->parts().empty(), "a product needs weights");
  const PackedMatrix& weights = *args.weights;
  check(weights.device() == exec.device(), "a matrix laid out for ", weights.device(), " cannot be multiplied by ",
        exec.device());
  const bool pairs = args.store == Store::silu_mul;
  check(!pairs || weights.join() == Join::gate_and_up, "silu_mul needs a gate and an up matrix");
  check(!pairs || args.scale == 1, "silu_mul cannot scale its results by ", args.scale);
  check(args.in.dim == weights.inputs(), "rows of ", args.in.dim, " cannot meet a matrix of ", weights.inputs(),
        " inputs");
  check(!args.in.scale_stride || exec.device() == Device::cpu, "rows that are not dense are multiplied on a CPU alone");
  if (!args.fusions.quantise) check_forms(args.in.forms, weights.forms());
  const int64_t columns = pairs ? weights.outputs() / 2 : weights.outputs();
  check(args.out.dim == columns, "an output of ", args.out.dim, " columns does not fit a product of ", columns);
  check(args.out.stride >= args.out.dim, "output rows of ", args.out.dim, " overlap at stride ", args.out.stride);
  check(args.live_rows != nullptr, "a product needs the address of the live row count");
}

void check_scratch(int64_t inputs, const Exec& exec) {
  constexpr int64_t kKept = kSweepRows * kTileColumns * 4, kSides = kSweepRows * 3 * 4, kSums = 4 * 1024;
  constexpr int64_t kUnpacked = 10 * kLine;
  const int64_t blocks = (inputs + 511) / 512 * 16;
  const auto needed = static_cast<size_t>(kKept + kSums + blocks * (kSides + kUnpacked));
  check(needed <= exec.scratch_bytes(), inputs, " inputs need ", needed, " bytes of scratch a thread, of ",
        exec.scratch_bytes());
}

int64_t live_rows_of(const MatmulArgs& args) {
  const int32_t rows = *args.live_rows;
  check(rows >= 0 && rows <= args.in.rows && rows <= args.out.rows, rows, " live rows, but room for ", args.in.rows,
        " in and ", args.out.rows, " out");
  return rows;
}

void matmul(const MatmulArgs& args, Exec& exec) {
  check(!args.fusions, "a product on a CPU fuses nothing");
  if (exec.isa() == Isa::plain) return ref::matmul(args, exec);
  check_matmul(args, exec);
  check_scratch(args.in.dim, exec);
  exec.launch(matmul_op, args);
}

}  // namespace quire::ops::cpu
