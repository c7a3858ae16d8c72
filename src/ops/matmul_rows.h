// Rows of activations as the quantised kernels take them: in groups, with the numbers that belong to a block at fixed
// distances from each other.
//
// Internal linkage: compiled with several sets of flags.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/matmul_task.h"

namespace quire::ops::cpu {
namespace {

// Calls body(row, count) for groups of `most` rows and the rest.
template <class Body>
inline void for_row_groups(RowRange rows, int64_t most, const Body& body) {
  for (int64_t row = rows.first; row < rows.end; row += most) body(row, std::min(most, rows.end - row));
}

// What a block of activations brings beside its bytes: its scale, and a term for each scale of the weights' block:
//   types with a minimum   in_scale * float(sum of q), a float
//   other types            -offset * sum of q, an int32: where the integer sum begins; for engines that add up pairs
//                          in 16 bits, two of 16: of q 0 and 1 of every four, of 2 and 3
// Blocks come in panels of 16. A panel of a group is [rows][1 + terms][16].
inline constexpr int64_t kPanel = 16;

template <int Terms>
struct Sides {
  static constexpr int64_t kRowWords = (1 + Terms) * kPanel;
  const int32_t* words;
  int64_t rows;

  // Of the group's first row; the next row's lies kRowWords further.
  const int32_t* block(int64_t b) const { return words + b / kPanel * (rows * kRowWords) + b % kPanel; }
  static const float* scale(const int32_t* block) { return reinterpret_cast<const float*>(block); }
  static const int32_t* term(const int32_t* block, int half) { return block + (1 + half) * kPanel; }
};

constexpr int64_t side_words_of_row(int64_t blocks, int terms) {
  return (blocks + kPanel - 1) / kPanel * (1 + terms) * kPanel;
}

// `count` blocks of one row, to one row of a panel.
template <class Weights>
[[gnu::always_inline]] inline void fill_side(const int8_t* q, const float* scale, const int32_t* sums, int64_t count,
                                             int32_t* words) {
  constexpr PackedLayout kLayout = Weights::kLayout;
  auto* scales = reinterpret_cast<float*>(words);
  auto* products = reinterpret_cast<float*>(words + kPanel);
  for (int64_t i = 0; i < count; ++i) scales[i] = scale[i];
  if constexpr (kLayout.minimum) {
    for (int64_t i = 0; i < count; ++i) products[i] = scale[i] * static_cast<float>(sums[2 * i] + sums[2 * i + 1]);
  } else if constexpr (Weights::Engine::kStartsInPairs) {
    Weights::Engine::template fill_pair_starts<kLayout.offset, kLayout.scales>(q, count, words + kPanel, kPanel);
  } else if constexpr (kLayout.scales == 1) {
    for (int64_t i = 0; i < count; ++i) words[kPanel + i] = -kLayout.offset * (sums[2 * i] + sums[2 * i + 1]);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      words[kPanel + i] = -kLayout.offset * sums[2 * i];
      words[2 * kPanel + i] = -kLayout.offset * sums[2 * i + 1];
    }
  }
}

// The sides of `rows`, group by group of `most` rows, from `words` on.
template <class Weights>
inline void fill_sides(const ActivationRows& in, RowRange rows, int64_t most, int32_t* words) {
  const int64_t blocks = in.dim / kBlockInputs, scales = in.scales_of_row();
  constexpr int64_t kRowWords = (1 + Weights::kLayout.scales) * kPanel;
  for_row_groups(rows, most, [&](int64_t row, int64_t count) {
    for (int64_t b = 0; b < blocks; b += kPanel)
      for (int64_t r = row; r < row + count; ++r, words += kRowWords) {
        const int8_t* q = in.q + r * in.q_stride + b * kBlockInputs;
        const float* scale = in.scale + r * scales + b;
        const int32_t* sums = in.sums + (r * scales + b) * 2;
        if (b + kPanel <= blocks)
          fill_side<Weights>(q, scale, sums, kPanel, words);
        else
          fill_side<Weights>(q, scale, sums, blocks - b, words);
      }
  });
}

}  // namespace
}  // namespace quire::ops::cpu
