#include "engine/draft_reach.h"

#include <algorithm>
#include <cmath>

#include "engine/draft_tree.h"

namespace quire::engine {
namespace {

constexpr double kFirstHit = 0.8;  // until something is known
constexpr double kNew = 0.125;

}  // namespace

DraftReach::DraftReach(int32_t deepest) : chances_(deepest) {
  double chance = 1;
  for (double& each : chances_) each = chance *= kFirstHit;
}

void DraftReach::add(std::span<const DraftToken> drafts) {
  const std::vector<double> paths = paths_of(drafts);
  std::vector<double> now(chances_.size());
  std::vector<size_t> depths;
  size_t made = 0;
  for (int32_t i = 0; i < std::ssize(drafts); ++i) {
    const int32_t parent = parent_of(drafts, i);
    depths.push_back(parent < 0 ? 1 : depths[parent] + 1);
    made = std::max(made, depths.back());
    if (depths.back() <= now.size()) now[depths.back() - 1] += paths[i];
  }
  const double hit = made > 0 && made < now.size() ? std::pow(now[made - 1], 1.0 / static_cast<double>(made)) : 0;
  for (size_t depth = made; depth > 0 && depth < now.size(); ++depth) now[depth] = hit * now[depth - 1];
  for (size_t i = 0; i < now.size(); ++i) chances_[i] += kNew * (now[i] - chances_[i]);
}

}  // namespace quire::engine
