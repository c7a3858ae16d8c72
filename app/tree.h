// The tree that the benchmarks draft: node j hangs below node (j - 1) / 2, so half of the nodes are leaves.
#pragma once
#include <cstdint>

namespace quire::bench {

constexpr int32_t parent(int32_t node) { return (node - 1) / 2; }

// Calls see(node) for the node itself and each of its ancestors, the root last.
template <class See>
constexpr void visit_path(int32_t node, See&& see) {
  for (; node > 0; node = parent(node)) see(node);
  see(0);
}

// Pairs (node, node that it sees) in a tree.
constexpr int32_t visible_pairs(int32_t nodes) {
  int32_t pairs = 0;
  for (int32_t node = 0; node < nodes; ++node) visit_path(node, [&](int32_t) { ++pairs; });
  return pairs;
}

// mask [nodes, nodes]: 1 where the row's node sees the column's.
inline void fill_tree_mask(uint8_t* mask, int32_t nodes) {
  for (int32_t i = 0; i < nodes * nodes; ++i) mask[i] = 0;
  for (int32_t node = 0; node < nodes; ++node) visit_path(node, [&](int32_t seen) { mask[node * nodes + seen] = 1; });
}

}  // namespace quire::bench
