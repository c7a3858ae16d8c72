// Rows of activations as the quantised kernels take them: in groups whose size is known to the compiler, with the
// numbers that belong to a block at fixed distances from each other.
//
// Internal linkage: compiled with several sets of flags.
#pragma once
#include <cstdint>

#include "ops/matmul_task.h"

namespace quire::ops::cpu {
namespace {

// Calls body.operator()<R>(row) for groups of R rows: as many as possible of Most, then of half of it, down to 1.
template <int Most, class Body>
inline void for_row_groups(RowRange rows, const Body& body) {
  int64_t row = rows.first;
  for (; row + Most <= rows.end; row += Most) body.template operator()<Most>(row);
  if constexpr (Most > 1) for_row_groups<Most / 2>({row, rows.end}, body);
}

// What a block of activations brings beside its bytes: its scale, and a term for each scale of the weights' block:
//   types with a minimum   in_scale * float(sum of q), a float
//   other types            -offset * sum of q, an int32: where the integer sum begins
// Blocks come in panels of 16. A panel of a group of R rows is [R][1 + terms][16], so that all rows of a block are at
// fixed distances.
inline constexpr int64_t kPanel = 16;

template <int R, int Terms>
struct Sides {
  static constexpr int64_t kRowWords = (1 + Terms) * kPanel;
  const int32_t* words;

  const int32_t* block(int64_t b) const { return words + b / kPanel * (R * kRowWords) + b % kPanel; }
  static const float* scale(const int32_t* block, int row) {
    return reinterpret_cast<const float*>(block + row * kRowWords);
  }
  static const int32_t* term(const int32_t* block, int row, int half) {
    return block + row * kRowWords + (1 + half) * kPanel;
  }
};

constexpr int64_t side_words_of_row(int64_t blocks, int terms) {
  return (blocks + kPanel - 1) / kPanel * (1 + terms) * kPanel;
}

// `count` blocks of one row, to one row of a panel.
template <class Layout>
[[gnu::always_inline]] inline void fill_side(const float* scale, const int32_t* sums, int64_t count, int32_t* words) {
  constexpr PackedLayout kLayout = Layout::kLayout;
  auto* scales = reinterpret_cast<float*>(words);
  auto* products = reinterpret_cast<float*>(words + kPanel);
  for (int64_t i = 0; i < count; ++i) scales[i] = scale[i];
  if constexpr (kLayout.minimum) {
    for (int64_t i = 0; i < count; ++i) products[i] = scale[i] * static_cast<float>(sums[2 * i] + sums[2 * i + 1]);
  } else if constexpr (kLayout.scales == 1) {
    for (int64_t i = 0; i < count; ++i) words[kPanel + i] = -kLayout.offset * (sums[2 * i] + sums[2 * i + 1]);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      words[kPanel + i] = -kLayout.offset * sums[2 * i];
      words[2 * kPanel + i] = -kLayout.offset * sums[2 * i + 1];
    }
  }
}

// The sides of `rows`, for groups of up to Most rows as for_row_groups makes them: group by group from `words` on.
template <int Most, class Layout>
inline void fill_sides(const ActivationRows& in, RowRange rows, int32_t* words) {
  const int64_t blocks = in.dim / kBlockInputs;
  constexpr int64_t kRowWords = (1 + Layout::kLayout.scales) * kPanel;
  for_row_groups<Most>(rows, [&]<int R>(int64_t row) {
    for (int64_t b = 0; b < blocks; b += kPanel)
      for (int r = 0; r < R; ++r, words += kRowWords) {
        const float* scale = in.scale + (row + r) * blocks + b;
        const int32_t* sums = in.sums + ((row + r) * blocks + b) * 2;
        if (b + kPanel <= blocks)
          fill_side<Layout>(scale, sums, kPanel, words);
        else
          fill_side<Layout>(scale, sums, blocks - b, words);
      }
  });
}

}  // namespace
}  // namespace quire::ops::cpu
