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
  bool starts;      // integer sums begin at a term of the activations, which takes the offset off
  bool full_bytes;  // numbers above 127: pairs of products do not fit 16 bits
  int scales;       // in a block
};

template <BlockType T>
constexpr WeightForm form_of() {
  constexpr PackedLayout kLayout = layout_of(T);
  return {kLayout.minimum, kLayout.offset != 0, T == BlockType::q8_0, kLayout.scales};
}

template <class E, BlockType T>
class PackedWeights {
 public:
  using S = typename E::Simd;
  using I = typename E::I;
  using F = typename S::F;
  static constexpr PackedLayout kLayout = layout_of(T);
  static constexpr WeightForm kForm = form_of<T>();

  PackedWeights(const std::byte* tile, int column) : tile_(tile), column_(column) {}

  struct Block {
    const std::byte* head;
    const std::byte* body;
    int64_t index;  // in its group
  };
  Block block(int64_t b) const { return {tile_ + kLayout.head(b), tile_ + kLayout.body(b), b % kLayout.group_blocks}; }

  // Inputs 4 g to 4 g + 3 of the block.
  template <int G>
  [[gnu::always_inline]] I numbers(const Block& block) const {
    if constexpr (T == BlockType::q8_0) return line(block, G);
    const I packed = line(block, G % 4);
    const I nibbles = E::template bits < 0x0f, G < 4 ? 0 : -4 > (packed);
    if constexpr (kLayout.block_bytes == 5 * kLine)
      return E::template with_bits<0x10, 4 - G>(nibbles, line(block, 4));
    else if constexpr (kLayout.block_bytes == 6 * kLine)
      return E::template with_bits<0x30, 4 - G % 4 * 2>(nibbles, line(block, 4 + G / 4));
    else
      return nibbles;
  }

  F scale(const Block& block, int half) const {
    if constexpr (kLayout.group_blocks < 8) {
      return halves(block.head + block.index * 2 * kTileColumns);
    } else {
      const std::byte* own = group_scales(block) + half * kTileColumns;
      return S::mul(halves(block.head), kLayout.scales == 2 ? E::widen_i8(own) : E::widen_u8(own));
    }
  }
  F minimum(const Block& block) const {
    const F least = halves(block.head + 2 * kTileColumns);
    if constexpr (kLayout.group_blocks < 8)
      return least;
    else
      return E::negated(S::mul(least, E::widen_u8(group_scales(block) + kTileColumns)));
  }

  // Asks for the lines that a product will reach 2 KB from here; past the tile lies the next one, and past the matrix
  // a prefetch does no harm.
  void fetch_ahead(const Block& block) const {
    constexpr int64_t kAhead = 2048;
    const std::byte* first = block.index == 0 ? block.body - kLayout.head_bytes : block.body;
    if (column_ == 0)
      for (const std::byte* at = first; at < block.body + kLayout.block_bytes; at += kLine)
        __builtin_prefetch(at + kAhead, 0, 3);
  }

 private:
  I line(const Block& block, int index) const { return E::load(block.body + index * kLine + column_ * 4); }
  F halves(const std::byte* all) const { return S::template load_as<Dtype::f16>(all + column_ * 2); }
  const std::byte* group_scales(const Block& block) const {
    return block.head + kLine + block.index * 2 * kTileColumns + column_;
  }

  const std::byte* tile_;
  int column_;
};

}  // namespace
}  // namespace quire::ops::cpu
