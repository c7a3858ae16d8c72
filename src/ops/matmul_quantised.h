// Runs of quantised tiles on vectors, for the engine E of an instruction set:
//
//   Simd, I        floats and integers of one width
//   kRows          the most rows whose sums stay in registers
//   dot<Full>      sums[c] += four products of unsigned weights and signed activations; Full: weights above 127
//   load, bits, with_bits, widen_u8, widen_i8, negated, zero, broadcast, to_float, add
//
// Weights are unpacked in registers, once for each group of rows; unpacking them into scratch for many rows was
// measured to be no faster. Internal linkage: compiled with several sets of flags.
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

template <class E, class Weights, int R>
class RowGroup {
 public:
  using S = typename E::Simd;
  using I = typename E::I;
  using F = typename S::F;
  static constexpr WeightForm kForm = Weights::kForm;
  using Side = Sides<R, kForm.scales>;

  RowGroup(const ActivationRows& in, int64_t row, const int32_t* sides)
      : q_(in.q + row * in.q_stride), stride_(in.q_stride), blocks_(in.dim / kBlockInputs), side_{sides} {}

  [[gnu::always_inline]] void products(const Weights& weights, F (&sums)[R]) const {
    const int8_t* q[R];
    for (int r = 0; r < R; ++r) {
      q[r] = q_ + r * stride_;
      sums[r] = S::zero();
    }
    for (int64_t b = 0; b < blocks_; ++b) {
      const auto block = weights.block(b);
      weights.fetch_ahead(block);
      const int32_t* side = side_.block(b);
      if constexpr (kForm.scales == 1) {
        add_block<0, 8>(weights, block, q, b * kBlockInputs, side, 0, sums);
      } else {
        add_block<0, 4>(weights, block, q, b * kBlockInputs, side, 0, sums);
        add_block<4, 8>(weights, block, q, b * kBlockInputs, side, 1, sums);
      }
    }
  }

 private:
  // Adds the products of inputs [4 First, 4 End) of a block, which share a scale.
  template <int First, int End>
  [[gnu::always_inline]] static void add_block(const Weights& weights, const typename Weights::Block& block,
                                               const int8_t* const (&q)[R], int64_t k, const int32_t* side, int half,
                                               F (&sums)[R]) {
    // Few rows have too few sums to keep the multipliers busy: theirs are taken in two parts.
    constexpr int kChains = R <= 2 ? 2 : 1, kMiddle = (First + End) / 2;
    I isum[kChains][R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      isum[0][r] = kForm.starts ? E::broadcast(Side::term(side, r, half)) : E::zero();
      if (kChains == 2) isum[kChains - 1][r] = E::zero();
    }
    [&]<size_t... G>(std::index_sequence<G...>) {
      (add_numbers<First + static_cast<int>(G)>(weights, block, q, k,
                                                isum[static_cast<int>(G) + First >= kMiddle ? kChains - 1 : 0]),
       ...);
    }
    (std::make_index_sequence<End - First>{});
    const F scale = weights.scale(block, half);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const I all = kChains == 2 ? E::add(isum[0][r], isum[kChains - 1][r]) : isum[0][r];
      sums[r] = S::fma(E::to_float(all), S::mul(scale, S::set1(*Side::scale(side, r))), sums[r]);
    }
    if constexpr (kForm.minimum) {
      const F minimum = weights.minimum(block);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        sums[r] = S::fma(minimum, S::set1(*reinterpret_cast<const float*>(Side::term(side, r, half))), sums[r]);
    }
  }

  template <int G>
  [[gnu::always_inline]] static void add_numbers(const Weights& weights, const typename Weights::Block& block,
                                                 const int8_t* const (&q)[R], int64_t k, I (&isum)[R]) {
    const I numbers = weights.template numbers<G>(block);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      isum[r] = E::template dot<kForm.full_bytes>(isum[r], numbers, E::broadcast(q[r] + k + 4 * G));
  }

  const int8_t* q_;
  int64_t stride_, blocks_;
  Side side_;
};

// One tile for R rows.
template <class E, class Weights, int R>
[[gnu::noinline]] void tile_rows(const std::byte* tile, const ActivationRows& in, int64_t row, int64_t swept,
                                 const int32_t* sides, const Place& place) {
  using S = typename E::Simd;
  const RowGroup<E, Weights, R> group(in, row, sides);
  fetch_outputs<R>(place, row);
  for (int column = 0; column < kTileColumns; column += S::kWidth) {
    typename S::F sums[R];
    group.products(Weights(tile, column), sums);
    put_rows<S>(place, row, swept, column, sums);
  }
}

template <class E, BlockType T>
void run_quantised(const TileRun& run, const ActivationRows& in, RowRange rows, std::byte* scratch) {
  using Weights = PackedWeights<E, T>;
  const int64_t row_words = side_words_of_row(run.inputs / kBlockInputs, Weights::kForm.scales);
  const QuantisedScratch memory = carve(scratch);
  fill_sides<E::kRows, Weights>(in, rows, memory.sides);
  // The tiles of a run stay in L2 while group after group of rows passes them.
  for_row_groups<E::kRows>(rows, [&]<int R>(int64_t row) {
    const int64_t swept = row - rows.first;
    Place place;
    for (int64_t i = 0; i < run.count; ++i) {
      find_place(run.target, i, memory.kept, place);
      tile_rows<E, Weights, R>(run.tiles + i * run.stride, in, row, swept, memory.sides + swept * row_words, place);
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
