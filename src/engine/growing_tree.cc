#include "engine/growing_tree.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace quire::engine {

void GrowingTree::add_level(std::span<const DraftToken> said) {
  const int32_t branches = levels_ == 0 ? 1 : size_.topk, first = static_cast<int32_t>(nodes_.size());
  check(std::ssize(said) == int64_t{branches} * size_.topk, said.size(), " drafts behind ", branches, " branches");
  for (int32_t i = 0; i < std::ssize(said); ++i) {
    const int32_t parent = levels_ == 0 ? -1 : followed_[i / size_.topk];
    const double above = parent < 0 ? 1 : nodes_[parent].path;
    nodes_.push_back(
        {.said = said[i], .parent = parent, .path = above * static_cast<double>(record_->hit(said[i].hit))});
  }
  std::vector<int32_t> level(said.size());
  std::iota(level.begin(), level.end(), first);
  std::ranges::stable_sort(level, [&](int32_t a, int32_t b) { return nodes_[a].path > nodes_[b].path; });
  level.resize(size_.topk);
  followed_ = std::move(level);
  ++levels_;
}

// All nodes of a level stand together, those behind one branch next to each other.
int32_t GrowingTree::continues(int32_t branch) const {
  const int32_t first = static_cast<int32_t>(nodes_.size()) - size_.topk * size_.topk;
  return (followed_[branch] - first) / size_.topk;
}

bool GrowingTree::grows(double least) const {
  if (levels_ >= std::min(size_.depth, size_.most)) return false;
  const double best = nodes_[followed_.front()].path;
  if (best < least) return false;
  if (std::ssize(nodes_) < size_.most) return true;
  return best > nodes_[best_first()[size_.most - 1]].path;
}

std::vector<int32_t> GrowingTree::best_first() const {
  std::vector<int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return nodes_[a].path > nodes_[b].path; });
  return order;
}

// Of equal paths the parent's node was made first, and a stable sort leaves it first.
void GrowingTree::take_best(std::vector<DraftToken>& drafts) const {
  std::vector<int32_t> place(nodes_.size(), -1);
  for (const int32_t node : best_first()) {
    const auto i = static_cast<int32_t>(drafts.size());
    if (i == size_.most) return;
    const Node& of = nodes_[node];
    const int32_t parent = of.parent < 0 ? -1 : place[of.parent];
    drafts.push_back({.token = of.said.token, .hit = of.said.hit, .back = i - parent});
    place[node] = i;
  }
}

}  // namespace quire::engine
