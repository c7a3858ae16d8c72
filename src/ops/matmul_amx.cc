// Runs of quantised tiles on AMX: a tile product gives the integer sums of 16 rows and 16 columns over one block of 32
// inputs, the vector units scale and add them as everywhere else. Rows that do not fill a tile take VNNI.
//
// A column tile is unpacked into scratch once and all rows of the sweep pass it. Products run two blocks ahead of the
// floats, in four tiles of sums that take turns.
#include "base/simd/amx.h"
#include "ops/matmul_quantised.h"
#include "ops/matmul_vnni.h"

namespace quire::ops::cpu {
namespace {

namespace amx = simd::amx;
using S = simd::Avx512;

constexpr int kTileRows = 16;
constexpr int64_t kSumsBytes = kTileRows * kLine;

// Tiles 0 to 3: sums; 4 and 5: 16 rows of a block of activations; 6 and 7: a block of weights.
constexpr amx::Config kShapes = {.row_bytes = {64, 64, 64, 64, 32, 32, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 8}};

// A block of unpacked weights: eight lines of bytes, then f32 scales and minima [16] each.
constexpr int64_t kScalesAt = 8 * kLine, kMinimaAt = 9 * kLine, kUnpackedBytes = 10 * kLine;

template <BlockType T>
void unpack_tile(const std::byte* tile, int64_t blocks, std::byte* to) {
  const PackedWeights<Vnni, T> weights(tile);
  for (int64_t b = 0; b < blocks; ++b, to += kUnpackedBytes) {
    const auto block = weights.block(b);
    [&]<size_t... G>(std::index_sequence<G...>) {
      (_mm512_store_si512(to + G * kLine, weights.template numbers<G>(block, 0)), ...);
    }
    (std::make_index_sequence<8>{});
    const auto head = weights.head(b, 0);
    S::store(reinterpret_cast<float*>(to + kScalesAt), weights.scale(block, head, 0, 0));
    if constexpr (weights.kForm.minimum) {
      const S::F minimum = weights.minimum(block, head, 0);
      const bool taken_off = PackedWeights<Vnni, T>::kMinimumIsTakenOff;
      S::store(reinterpret_cast<float*>(to + kMinimaAt), taken_off ? S::mul(minimum, S::set1(-1)) : minimum);
    }
  }
}

// Asks for the tile that is unpacked next, which takes much less time than the products between.
void fetch_tile(const std::byte* tile, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(tile + at, 0, 2);
}

// 16 rows and one column tile.
template <WeightForm Form>
class TileProduct {
 public:
  TileProduct(const ActivationRows& in, int64_t row, const int32_t* sides, const std::byte* unpacked, std::byte* isums)
      : q_(in.q + row * in.q_stride),
        stride_(in.q_stride),
        blocks_(in.dim / kBlockInputs),
        side_{sides, kTileRows},
        unpacked_(unpacked),
        isums_(isums) {}

  void run(S::F (&sums)[kTileRows]) const {
#pragma GCC unroll 16
    for (S::F& sum : sums) sum = S::zero();
    multiply<0>(0);
    multiply<1>(1);
    leave<0>(0);
    for (int64_t b = 0; b < blocks_; b += 4) {
      step<0>(b, sums);
      step<1>(b + 1, sums);
      step<2>(b + 2, sums);
      step<3>(b + 3, sums);
    }
  }

 private:
  using Side = Sides<1>;

  // Block b's floats, while the next block's sums leave their tile and the one after that is multiplied.
  template <int Slot>
  [[gnu::always_inline]] void step(int64_t b, S::F (&sums)[kTileRows]) const {
    if (b >= blocks_) return;
    multiply<(Slot + 2) % 4>(b + 2);
    leave<(Slot + 1) % 4>(b + 1);
    add_block(b, isums_ + Slot * kSumsBytes, sums);
  }

  template <int Slot>
  [[gnu::always_inline]] void multiply(int64_t b) const {
    if (b >= blocks_) return;
    constexpr int kRowTile = 4 + Slot % 2, kWeightTile = 6 + Slot % 2;
    amx::zero<Slot>();
    amx::load<kRowTile>(q_ + b * kBlockInputs, stride_);
    amx::load<kWeightTile>(unpacked_ + b * kUnpackedBytes, kLine);
    amx::dot_bytes<Slot, kRowTile, kWeightTile>();
  }

  template <int Slot>
  [[gnu::always_inline]] void leave(int64_t b) const {
    if (b < blocks_) amx::store<Slot>(isums_ + Slot * kSumsBytes, kLine);
  }

  [[gnu::always_inline]] void add_block(int64_t b, const std::byte* isums, S::F (&sums)[kTileRows]) const {
    const std::byte* weights = unpacked_ + b * kUnpackedBytes;
    const int32_t* side = side_.block(b);
    const S::F scale = S::load(reinterpret_cast<const float*>(weights + kScalesAt));
    const S::F minimum = Form.minimum ? S::load(reinterpret_cast<const float*>(weights + kMinimaAt)) : S::zero();
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      Vnni::I isum = Vnni::load(isums + r * kLine);
      const int32_t* own = side + r * Side::kRowWords;
      if constexpr (Form.starts) isum = Vnni::add(isum, Vnni::broadcast(Side::term(own, 0)));
      sums[r] = S::fma(Vnni::to_float(isum), S::mul(scale, S::set1(*Side::scale(own))), sums[r]);
      if constexpr (Form.minimum)
        sums[r] = S::fma(minimum, S::set1(*reinterpret_cast<const float*>(Side::term(own, 0))), sums[r]);
    }
  }

  const int8_t* q_;
  int64_t stride_, blocks_;
  Side side_;
  const std::byte* unpacked_;
  std::byte* isums_;  // [4][16][16] int32
};

template <WeightForm Form>
[[gnu::noinline]] void full_tile_rows(const TileProduct<Form>& product, int64_t row, int64_t swept,
                                      const Place& place) {
  fetch_outputs(place, row, kTileRows);
  S::F sums[kTileRows], results[kTileRows];
  product.run(sums);
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) results[r] = sums[r];  // so that the sums themselves stay in registers
  put_rows<S>(place, row, swept, 0, results, kTileRows);
}

template <BlockType T>
void run_amx(const TileRun& run, const ActivationRows& in, RowRange rows, std::byte* scratch) {
  using Weights = PackedWeights<Vnni, T>;
  const int64_t blocks = run.inputs / kBlockInputs, row_words = side_words_of_row(blocks, 1);
  const QuantisedScratch memory = carve(scratch);
  fill_sides<Weights>(in, rows, kTileRows, memory.sides);
  auto* isums = reinterpret_cast<std::byte*>(memory.sides + (rows.end - rows.first) * row_words);
  std::byte* unpacked = isums + 4 * kSumsBytes;
  amx::configure(kShapes);
  Place place;
  for (int64_t i = 0; i < run.count; ++i) {
    const std::byte* tile = run.tiles + i * run.stride;
    unpack_tile<T>(tile, blocks, unpacked);
    fetch_tile(tile + run.stride, tile_bytes(T, run.inputs));
    find_place(run.target, i, memory.kept, place);
    for_row_groups(rows, kTileRows, [&](int64_t row, int64_t count) {
      const int64_t swept = row - rows.first;
      const int32_t* sides = memory.sides + swept * row_words;
      if (count == kTileRows)
        full_tile_rows(TileProduct<Weights::kForm>(in, row, sides, unpacked, isums), row, swept, place);
      else
        tile_rows<Vnni, Weights, kGroupRows>(tile, in, row, count, swept, sides, place);
    });
  }
  amx::release();
}

}  // namespace

TilesFn* amx_tiles(BlockType type) {
  switch (type) {
    case BlockType::q8_0:
      return run_amx<BlockType::q8_0>;
    case BlockType::q4_0:
      return run_amx<BlockType::q4_0>;
    case BlockType::q4_1:
      return run_amx<BlockType::q4_1>;
    case BlockType::q5_0:
      return run_amx<BlockType::q5_0>;
    case BlockType::q5_1:
      return run_amx<BlockType::q5_1>;
    case BlockType::q4_k:
      return run_amx<BlockType::q4_k>;
    case BlockType::q5_k:
      return run_amx<BlockType::q5_k>;
    default:  // scales of half blocks: a tile of 16 inputs is no faster than vectors
      return vnni_tiles(type);
  }
}

}  // namespace quire::ops::cpu
