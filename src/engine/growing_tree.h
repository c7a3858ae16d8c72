// A tree of drafts while a model makes it, level by level, as EAGLE-2 does (draft_tree.h has what comes of it):
//
//   level 1    the topk likeliest tokens behind the text
//   level i    of each branch that was followed, the topk likeliest tokens behind it; the topk best of all these by
//              their paths are followed next
//   the tree   of all that was said, the best by their paths. None is likelier than what it follows, so that is in it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_record.h"
#include "engine/drafter.h"

namespace quire::engine {

class GrowingTree {
 public:
  struct Size {
    int32_t topk;   // branches
    int32_t depth;  // most drafts on one of them
    int32_t most;   // drafts
  };
  // record: how likely a draft is of which the model says so; it outlives the tree.
  GrowingTree(const Size& size, const DraftRecord& record) : size_(size), record_(&record) {}

  // What the model says behind the branches that are followed, topk tokens of each; the first time behind the text.
  void add_level(std::span<const DraftToken> said);
  // Which of these are followed, topk of them, where somebody else has chosen.
  void follow(std::span<const int32_t> chosen);

  // Branch c of the next pass, and which branch of the pass before it continues.
  int32_t token(int32_t branch) const { return nodes_[followed_[branch]].said.token; }
  int32_t continues(int32_t branch) const;

  // Whether another level may bring a draft that is among the best, and likelier than `least`.
  bool grows(double least) const;

  void take_best(std::vector<DraftToken>& drafts) const;  // each with what the model says

 private:
  struct Node {
    DraftToken said;
    int32_t parent;  // -1: the text
    double path;
  };
  Size size_;
  const DraftRecord* record_;
  std::vector<Node> nodes_;
  std::vector<int32_t> followed_;  // [topk] nodes, once there are any
  std::vector<int32_t> best_;      // nodes of the tree, the best first
  int32_t levels_ = 0;
  int32_t level_begin_ = 0;  // the first node of the newest level
};

}  // namespace quire::engine
