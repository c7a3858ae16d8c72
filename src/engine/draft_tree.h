// Drafts that branch: several guesses of a request's next token in one step, and of what follows each of them.
//
//   drafts   [ c' | d' | c" | e' | d" ]   of a text that ends with b       b -+- c' -+- d' --- e'
//   back       1    1    3    2    2                                          |      |
//   parent    -1    0   -1    1    2                                          +- c" --- d"
//
// A tree is a list of DraftToken, each of which says how far before it its parent stands; a chain is a list in which
// every draft follows the one before it, and needs no word of its own. Everybody who hands drafts on relies on this:
//
//   order     parents stand before their children, and drafts in order of their paths, the likeliest first (a path: the
//             chance that a draft and all before it on its branch come). So any beginning of a list is a tree, and the
//             best of its size: whoever has less room cuts the end off.
//   rows      draft i has row i + 1 behind the text's last row, which is row 0 of the tree, and its keys and values lie
//             in the slot of its row, as in a chain: position text_end + i in the request's pages. What it attends to
//             and its angles are those of its depth: position text_end - 1 + depth. (Batch, Runner)
//   the walk  starts in row 0 and goes from each draw to the child that equals it: parents before children, so the rows
//             that gave tokens, in the order of rows, are the path. Its tokens are those that come without drafts.
//             (StepSampler; walked_rows() in step.h)
//   after     what lies in the slots of the path's rows is moved to where the text has them (Runner::keep_path; on a
//             GPU model/draft_branches.h), before the next step; the rest is given back with the pages behind the
//             text's end.
//
// A step with chunks of prompts, and an engine that verifies chains only, gets the best path of each tree.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafter.h"

namespace quire::engine {

// The draft that draft i follows; -1: the text.
inline int32_t parent_of(std::span<const DraftToken> drafts, int32_t i) { return i - drafts[i].back; }

bool is_chain(std::span<const DraftToken> drafts);

std::vector<double> paths_of(std::span<const DraftToken> drafts);  // of each draft
double expected_tokens(std::span<const DraftToken> drafts);        // that come of them on average: the sum of the paths

// Leaves the branch that brings the most tokens, as a chain.
void keep_best_path(std::vector<DraftToken>& drafts);

}  // namespace quire::engine
