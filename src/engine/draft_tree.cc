#include "engine/draft_tree.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {

bool is_chain(std::span<const DraftToken> drafts) {
  return std::ranges::all_of(drafts, [](const DraftToken& draft) { return draft.back == 1; });
}

std::vector<double> paths_of(std::span<const DraftToken> drafts) {
  std::vector<double> paths;
  for (int32_t i = 0; i < std::ssize(drafts); ++i) {
    const int32_t parent = parent_of(drafts, i);
    check(parent >= -1 && parent < i, "draft ", i, " follows draft ", parent);
    paths.push_back((parent < 0 ? 1 : paths[parent]) * static_cast<double>(drafts[i].hit));
  }
  return paths;
}

double expected_tokens(std::span<const DraftToken> drafts) {
  double tokens = 0;
  for (const double path : paths_of(drafts)) tokens += path;
  return tokens;
}

void keep_best_path(std::vector<DraftToken>& drafts) {
  if (is_chain(drafts)) return;
  std::vector<double> tokens = paths_of(drafts);  // that each branch brings, up to the draft
  for (int32_t i = 0; i < std::ssize(drafts); ++i)
    if (const int32_t parent = parent_of(drafts, i); parent >= 0) tokens[i] += tokens[parent];
  auto at = static_cast<int32_t>(std::ranges::max_element(tokens) - tokens.begin());
  std::vector<DraftToken> chain;
  for (; at >= 0; at = parent_of(drafts, at)) chain.push_back({.token = drafts[at].token, .hit = drafts[at].hit});
  drafts.assign(chain.rbegin(), chain.rend());
}

}  // namespace quire::engine
