// Runs of quantised tiles on vectors, for the engine E of an instruction set:
//
//   Simd, I          floats and integers of one width
//   kTogether        rows whose sums are computed together
//   add_dots         adds dots of numbers [First, First + Count), four unsigned bytes each, with the bytes of R rows
//                    from q on to where their sums begin
//   kStartsInPairs   they begin as pairs of 16 bits, which fill_pair_starts computes
//   load, bits, with_bits, widen_u8, widen_i8, zero, broadcast, to_float
//
// Internal linkage: compiled with several sets of flags.
#pragma once
#include <utility>

#include "ops/matmul_epilogue.h"
#include "ops/matmul_rows.h"
#include "ops/matmul_weights.h"

namespace quire::ops::cpu {
namespace {

// What a thread's scratch holds while it computes a run.
struct QuantisedScratch {
  float* kept;     // [kSweepRows][16]
  int32_t* sides;  // of the sweep's rows
};
inline QuantisedScratch carve(std::byte* scratch) {
  auto* kept = reinterpret_cast<float*>(scratch);
  return {kept, reinterpret_cast<int32_t*>(kept + kSweepRows * kTileColumns)};
}

inline constexpr int64_t kGroupRows = 32;

// One tile and a group of rows. A block's numbers are unpacked into registers, vector of columns by vector, and pass
// all rows; the rows' sums are in L1, or in registers where all rows are computed together.
template <class E, class Weights>
class TileRows {
 public:
  using S = typename E::Simd;
  using I = typename E::I;
  using F = typename S::F;
  static constexpr int kVectors = kTileColumns / S::kWidth;

  TileRows(const ActivationRows& in, int64_t row, int64_t rows, const int32_t* sides)
      : q_(in.q + row * in.q_stride), stride_(in.q_stride), blocks_(in.dim / kBlockInputs), side_{sides, rows} {}

  // Room: rows whose sums there is room for; up to kTogether, there are as many rows.
  template <int64_t Room>
  [[gnu::always_inline]] void products(const Weights& weights, F (&sums)[kVectors][Room]) const {
    for (auto& vector : sums)
      for (int64_t r = 0; r < (Room <= E::kTogether ? Room : side_.rows); ++r) vector[r] = S::zero();
    const int8_t* q = q_;
    for (int64_t b = 0; b < blocks_; b += Weights::kStep) {
      typename Weights::Head heads[kVectors];
      for (int v = 0; v < kVectors; ++v) heads[v] = weights.head(b, v);
      weights.fetch_head_ahead(b);
      auto block = weights.block(b);
      const int32_t* side = side_.block(b);
      for (int64_t i = 0; i < Weights::kStep; ++i, ++side, q += kBlockInputs, block = Weights::next(block)) {
        Weights::fetch_ahead(block);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) add_block<Room>(BlockNumbers(block, heads[v], v), q, side, sums[v]);
      }
    }
  }

 private:
  static constexpr WeightForm kForm = Weights::kForm;
  using Side = Sides<kForm.scales>;

  // A block of one vector of columns.
  struct BlockNumbers {
    [[gnu::always_inline]] BlockNumbers(const typename Weights::Block& block, const typename Weights::Head& head,
                                        int vector) {
      [&]<size_t... G>(std::index_sequence<G...>) { ((numbers[G] = Weights::template numbers<G>(block, vector)), ...); }
      (std::make_index_sequence<8>{});
      for (int half = 0; half < kForm.scales; ++half) scale[half] = Weights::scale(block, head, half, vector);
      if constexpr (kForm.minimum) minimum = Weights::minimum(block, head, vector);
    }
    I numbers[8];  // of four inputs each
    F scale[kForm.scales];
    F minimum;
  };

  template <int64_t Room>
  [[gnu::always_inline]] void add_block(const BlockNumbers& block, const int8_t* q, const int32_t* side,
                                        F (&sums)[Room]) const {
    if constexpr (Room <= E::kTogether) return add_rows<Room>(block, q, side, sums);
    int64_t r = 0;
    for (; r + E::kTogether <= side_.rows; r += E::kTogether) {
      add_rows<E::kTogether>(block, q, side, sums + r);
      // So many rows are more than a core's own prefetcher follows.
      for (int ahead = 0; ahead < E::kTogether; ++ahead) __builtin_prefetch(q + ahead * stride_ + kLine, 0, 3);
      q += E::kTogether * stride_;
      side += E::kTogether * Side::kRowWords;
    }
    if constexpr (E::kTogether > 2)
      if (side_.rows - r >= 2) {
        add_rows<2>(block, q, side, sums + r);
        r += 2, q += 2 * stride_, side += 2 * Side::kRowWords;
      }
    if constexpr (E::kTogether > 1)
      if (r < side_.rows) add_rows<1>(block, q, side, sums + r);
  }

  template <int R>
  [[gnu::always_inline]] void add_rows(const BlockNumbers& block, const int8_t* q, const int32_t* side, F* sums) const {
    add_half<0, R>(block, q, side, sums);
    if constexpr (kForm.scales == 2) add_half<1, R>(block, q, side, sums);
  }

  // Adds the products of inputs that share a scale.
  template <int Half, int R>
  [[gnu::always_inline]] void add_half(const BlockNumbers& block, const int8_t* q, const int32_t* side, F* sums) const {
    constexpr int kCount = 8 / kForm.scales;
    I isums[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      isums[r] = kForm.starts ? E::broadcast(Side::term(side + r * Side::kRowWords, Half)) : E::zero();
    E::template add_dots<kForm, Half * kCount, kCount>(block.numbers, q, stride_, isums);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r, side += Side::kRowWords) {
      F sum = S::fma(E::to_float(isums[r]), S::mul(block.scale[Half], S::set1(*Side::scale(side))), sums[r]);
      if constexpr (kForm.minimum) {
        const F term = S::set1(*reinterpret_cast<const float*>(Side::term(side, Half)));
        sum = Weights::kMinimumIsTakenOff ? S::fnma(block.minimum, term, sum) : S::fma(block.minimum, term, sum);
      }
      sums[r] = sum;
    }
  }

  const int8_t* q_;
  int64_t stride_, blocks_;
  Side side_;
};

// One tile for up to Room rows.
template <class E, class Weights, int64_t Room>
[[gnu::noinline]] void tile_rows(const std::byte* tile, const ActivationRows& in, int64_t row, int64_t rows,
                                 int64_t swept, const int32_t* sides, const Place& place) {
  using Rows = TileRows<E, Weights>;
  fetch_outputs(place, row, rows);
  typename E::Simd::F sums[Rows::kVectors][Room];
  Rows(in, row, rows, sides).template products<Room>(Weights(tile), sums);
  for (int v = 0; v < Rows::kVectors; ++v)
    put_rows<typename E::Simd>(place, row, swept, v * E::Simd::kWidth, sums[v], rows);
}

// A step that verifies drafts has 2 to 4 rows, and gains a fifth where the compiler knows how many.
template <class E, class Weights>
auto tile_rows_for(int64_t rows) {
  if (rows == 1) return tile_rows<E, Weights, 1>;
  if constexpr (E::kTogether > 2) {
    if (rows == 2) return tile_rows<E, Weights, 2>;
    if (rows == E::kTogether) return tile_rows<E, Weights, E::kTogether>;
  }
  return tile_rows<E, Weights, kGroupRows>;
}

template <class E, BlockType T>
void run_quantised(const TileRun& run, const ActivationRows& in, RowRange rows, std::byte* scratch) {
  using Weights = PackedWeights<E, T>;
  const int64_t row_words = side_words_of_row(run.inputs / kBlockInputs, Weights::kForm.scales);
  const QuantisedScratch memory = carve(scratch);
  fill_sides<Weights>(in, rows, kGroupRows, memory.sides);
  // The tiles of a run stay in L2 while group after group of rows passes them.
  for_row_groups(rows, kGroupRows, [&](int64_t row, int64_t count) {
    const auto compute = tile_rows_for<E, Weights>(count);
    const int64_t swept = row - rows.first;
    Place place;
    for (int64_t i = 0; i < run.count; ++i) {
      find_place(run.target, i, memory.kept, place);
      compute(run.tiles + i * run.stride, in, row, count, swept, memory.sides + swept * row_words, place);
    }
  });
}

template <class E>
TilesFn* quantised_tiles(BlockType type) {
  switch (type) {
    case BlockType::q8_0:
      return run_quantised<E, BlockType::q8_0>;
    case BlockType::q4_0:
      return run_quantised<E, BlockType::q4_0>;
    case BlockType::q4_1:
      return run_quantised<E, BlockType::q4_1>;
    case BlockType::q5_0:
      return run_quantised<E, BlockType::q5_0>;
    case BlockType::q5_1:
      return run_quantised<E, BlockType::q5_1>;
    case BlockType::q4_k:
      return run_quantised<E, BlockType::q4_k>;
    case BlockType::q5_k:
      return run_quantised<E, BlockType::q5_k>;
    case BlockType::q6_k:
      return run_quantised<E, BlockType::q6_k>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace quire::ops::cpu
