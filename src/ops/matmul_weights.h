// Weights of one tile as the quantised kernels read them: unpacked into registers, S::kWidth columns at a time.
//
// A block gives eight vectors of unsigned bytes (four inputs of each column), one or two vectors of scales, and for
// some types one of minima. Internal linkage: compiled with several sets of flags.
#pragma once
#include "ops/matmul_task.h"

namespace quire::ops::cpu {
namespace {

// What a kernel must know of a type at compile time.
struct WeightForm {
  bool minimum;
  bool starts;  // integer sums begin at a term of the activations, which takes the offset off
  int largest;  // number
  int scales;   // in a block
};

template <BlockType T>
constexpr WeightForm form_of() {
  constexpr PackedLayout kLayout = layout_of(T);
  return {kLayout.minimum, kLayout.offset != 0, (1 << kLayout.bits()) - 1, kLayout.scales};
}

template <class E, BlockType T>
class PackedWeights {
 public:
  using Engine = E;
  using S = typename E::Simd;
  using I = typename E::I;
  using F = typename S::F;
  static constexpr PackedLayout kLayout = layout_of(T);
  static constexpr WeightForm kForm = form_of<T>();

  explicit PackedWeights(const std::byte* tile) : tile_(tile) {}

  // Blocks of 256 share a head; other groups are taken block by block.
  static constexpr bool kSharedHead = kLayout.group_blocks == 8;
  static constexpr int64_t kStep = kSharedHead ? 8 : 1;
  struct Block {
    const std::byte* scales;  // its own
    const std::byte* lines;
  };
  Block block(int64_t b) const {
    const std::byte* scales = tile_ + kLayout.head(b) + b % kLayout.group_blocks * 2 * kTileColumns;
    return {kSharedHead ? scales + kLine : scales, tile_ + kLayout.body(b)};
  }
  // The next one of those that share a head.
  static Block next(Block block) { return {block.scales + 2 * kTileColumns, block.lines + kLayout.block_bytes}; }

  // Inputs 4 g to 4 g + 3 of the block. `vector` counts vectors of columns, here and below.
  template <int G>
  [[gnu::always_inline]] static I numbers(const Block& block, int vector) {
    constexpr Pieces kPieces = pieces_of(kLayout.bits(), G);
    constexpr Piece kFirst = kPieces.at[0];
    if constexpr (T == BlockType::q8_0) return line(block, kFirst.line, vector);
    I number = E::template bits<kFirst.mask, kFirst.right>(line(block, kFirst.line, vector));
    number = with_piece<G, 1>(number, block, vector);
    return with_piece<G, 2>(number, block, vector);
  }

  // What the blocks that share a head scale their own numbers by.
  struct Head {
    F scale, minimum;
  };
  Head head(int64_t b, int vector) const {
    Head result{};
    if constexpr (kSharedHead) {
      const std::byte* first = tile_ + kLayout.head(b);
      result.scale = halves(first, vector);
      if constexpr (kForm.minimum) result.minimum = halves(first + 2 * kTileColumns, vector);
    }
    return result;
  }
  static F scale(const Block& block, const Head& head, int half, int vector) {
    if constexpr (!kSharedHead) return halves(block.scales, vector);
    const std::byte* own = block.scales + half * kTileColumns + vector * S::kWidth;
    return S::mul(head.scale, kLayout.scales == 2 ? E::widen_i8(own) : E::widen_u8(own));
  }
  // Of blocks that share a head it is taken off, not added.
  static constexpr bool kMinimumIsTakenOff = kSharedHead;
  static F minimum(const Block& block, const Head& head, int vector) {
    if constexpr (!kSharedHead) return halves(block.scales + 2 * kTileColumns, vector);
    return S::mul(head.minimum, E::widen_u8(block.scales + kTileColumns + vector * S::kWidth));
  }

  // Ask for the lines that a product will reach 4 KB from here; past the tile lies the next one, and past the matrix
  // a prefetch does no harm.
  [[gnu::always_inline]] static void fetch_ahead(const Block& block) {
    constexpr int64_t kBytes = kSharedHead ? kLayout.block_bytes : kLayout.group_bytes() / kLayout.group_blocks;
    for (int64_t at = 0; at < kBytes; at += kLine) __builtin_prefetch(block.lines + kAhead + at, 0, 3);
  }
  [[gnu::always_inline]] void fetch_head_ahead(int64_t b) const {
    if constexpr (!kSharedHead) return;
    for (int64_t at = 0; at < kLayout.head_bytes; at += kLine)
      __builtin_prefetch(tile_ + kLayout.head(b) + kAhead + at, 0, 3);
  }

 private:
  static constexpr int64_t kAhead = 4096;

  template <int G, int Index>
  [[gnu::always_inline]] static I with_piece(I number, const Block& block, int vector) {
    constexpr Pieces kPieces = pieces_of(kLayout.bits(), G);
    if constexpr (Index >= kPieces.count) return number;
    constexpr Piece kPiece = kPieces.at[Index];
    return E::template with_bits<kPiece.mask, kPiece.right>(number, line(block, kPiece.line, vector));
  }
  static I line(const Block& block, int index, int vector) {
    return E::load(block.lines + index * kLine + vector * S::kWidth * 4);
  }
  static F halves(const std::byte* from, int vector) {
    return S::template load_as<Dtype::f16>(from + vector * S::kWidth * 2);
  }

  const std::byte* tile_;
};

}  // namespace
}  // namespace quire::ops::cpu
