// Inside matmul: one product as runs of column tiles, and what each instruction set provides for them.
//
// matmul_cpu.cc cuts a product into chunks of column tiles for the threads, a chunk into runs of one type, and rows
// into sweeps. matmul_quantised.h and matmul_dense.h (in matmul_{avx2,avxvnni,avx512,vnni}.cc) and matmul_amx.cc
// compute a run, from rows as matmul_rows.h groups them and weights as matmul_weights.h unpacks them; matmul_epilogue.h
// stores results.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ops/matmul.h"
#include "ops/packed_layout.h"

namespace quire::ops::cpu {

inline constexpr int64_t kSweepRows = 256;  // rows that pass a chunk of tiles before the next ones do

// What becomes of a tile's results.
enum class Action : uint8_t {
  set,
  add,
  keep,          // a gate tile: stays in scratch for the up tile that follows
  silu_mul_kept  // an up tile
};

// Where a run's results go. Tiles of a gate and up matrix of one type alternate in a run: even ones are gates.
struct Target {
  float* out;            // row 0, the run's first column
  int64_t stride;        // of rows
  int64_t columns;       // that exist from there on
  bool alternating;      // two tiles for each 16 columns
  int halves;            // 1: a row of results has two of activations, whose sums are added (q8x2); else 0
  Action action[2];      // of even and odd tiles
  const float* bias[2];  // of even and odd tiles, from the run's first column on; null: none
  float scale;           // of what is set or added
};

// Column tiles of one type that lie one after the other.
struct TileRun {
  const std::byte* tiles;
  int64_t stride;  // bytes from one tile to the next
  int64_t count;
  int64_t inputs;
  Target target;
};

struct RowRange {
  int64_t first, end;
};

// Computes the run's tiles for the rows, at most kSweepRows of them.
using TilesFn = void(const TileRun& run, const ActivationRows& in, RowRange rows, std::byte* scratch);

TilesFn* avx2_tiles(BlockType type);          // every type
TilesFn* avxvnni_tiles(BlockType type);       // every quantised type
TilesFn* avx512_dense_tiles(BlockType type);  // f32, f16, bf16
TilesFn* vnni_tiles(BlockType type);          // every quantised type
TilesFn* amx_tiles(BlockType type);           // every quantised type
// The one for so many rows.
TilesFn* tiles_fn(Isa isa, BlockType type, int64_t rows);

// Throws CheckError unless the arguments fit the weights, and the weights exec.
void check_matmul(const MatmulArgs& args, const Exec& exec);
// And unless a thread's scratch is enough for any kernel: kept gates, the scale and two terms of every block of a
// sweep's rows (in panels of 16 blocks), and for AMX four tiles of sums and an unpacked tile.
void check_scratch(int64_t inputs, const Exec& exec);
// 1 when each row comes as two quantised ones.
inline int halves_of(const MatmulArgs& args) { return args.in.forms.q8x2 && args.weights->forms().q8 ? 1 : 0; }
// Rows of results, read when the operation runs. Throws CheckError when there is no room for them.
int64_t live_rows_of(const MatmulArgs& args);

}  // namespace quire::ops::cpu
