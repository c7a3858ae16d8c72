#include "engine/growing_tree.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/check.h"

namespace quire::engine {

void GrowingTree::add_level(std::span<const DraftToken> said) {
  const int32_t branches = levels_ == 0 ? 1 : size_.topk;
  level_begin_ = static_cast<int32_t>(nodes_.size());
  check(std::ssize(said) == int64_t{branches} * size_.topk, said.size(), " drafts behind ", branches, " branches");
  for (int32_t i = 0; i < std::ssize(said); ++i) {
    const int32_t parent = levels_ == 0 ? -1 : followed_[i / size_.topk];
    const double above = parent < 0 ? 1 : nodes_[parent].path;
    nodes_.push_back(
        {.said = said[i], .parent = parent, .path = above * static_cast<double>(record_->hit(said[i].hit))});
  }
  const auto better = [&](int32_t a, int32_t b) { return nodes_[a].path > nodes_[b].path; };
  std::vector<int32_t> level(said.size()), best;
  std::iota(level.begin(), level.end(), level_begin_);
  std::ranges::stable_sort(level, better);
  // Of equal paths the parent's node was made first, and a stable merge leaves it first.
  std::ranges::merge(best_, level, std::back_inserter(best), better);
  best.resize(std::min<size_t>(best.size(), size_.most));
  best_ = std::move(best);
  level.resize(size_.topk);
  followed_ = std::move(level);
  ++levels_;
}

void GrowingTree::follow(std::span<const int32_t> chosen) {
  const int32_t said = static_cast<int32_t>(nodes_.size()) - level_begin_;
  check(std::ssize(chosen) == size_.topk, chosen.size(), " branches are followed, not ", size_.topk);
  for (size_t branch = 0; branch < chosen.size(); ++branch) {
    check(chosen[branch] >= 0 && chosen[branch] < said, "draft ", chosen[branch], " of ", said, " is followed");
    followed_[branch] = level_begin_ + chosen[branch];
  }
}

// All nodes of a level stand together, those behind one branch next to each other.
int32_t GrowingTree::continues(int32_t branch) const { return (followed_[branch] - level_begin_) / size_.topk; }

bool GrowingTree::grows(double least) const {
  if (levels_ >= std::min(size_.depth, size_.most)) return false;
  const double best = nodes_[followed_.front()].path;
  if (best < least) return false;
  return std::ssize(best_) < size_.most || best > nodes_[best_.back()].path;
}

void GrowingTree::take_best(std::vector<DraftToken>& drafts) const {
  for (const int32_t node : best_) {
    const auto i = static_cast<int32_t>(drafts.size());
    const auto& [said, parent, path] = nodes_[node];
    const auto above = parent < 0 ? -1 : static_cast<int32_t>(std::ranges::find(best_, parent) - best_.begin());
    drafts.push_back({.token = said.token, .hit = said.hit, .back = i - above});
  }
}

}  // namespace quire::engine
