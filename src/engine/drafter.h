// Drafts: guesses of how a text goes on, so that one step may compute several of its tokens (speculative decoding).
//
//   text       ... a  b                    the newest token b is not computed yet
//   drafts              c' d' e'           what a drafter guesses
//   step             b  c' d' e'           rows of one chain, with logits on all of them
//   the walk         c  d  x               each drawn by the request's own sampler, at its own position, from the row
//                                          before it: c = c', so the row of c' counts; x is not e', and ends it
//
// Every token is the one that would be drawn without drafts, so greedy and seeded output, penalties, biases, masks,
// stops, logprobs and limits keep their bits whatever a drafter says: it can only cost rows. Three tokens came of this
// step; the row of e' is forgotten. Drafts may branch (draft_tree.h): then the walk goes to whichever child came.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/request.h"

namespace quire::engine {

struct DraftToken {
  int32_t token;
  float hit;         // how likely it comes, given that what it follows has come: from 0 to 1
  int32_t back = 1;  // it follows the draft so many before it in the list; before the first stands the text
};

class Drafter {  // of one request, as long as that lives; used by the thread that steps
 public:
  virtual ~Drafter() = default;
  // How the text may go on: up to `most` tokens, the likeliest chain first to last, or a tree (draft_tree.h). Between
  // two calls the text only grows, by what came in place of the drafts. drafts is empty before; ids are of the
  // vocabulary. Everybody waits meanwhile, and nobody is there to be told of an exception.
  virtual void propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) = 0;
};

// For each request that comes, whose prompt is still in it. Null: nothing is drafted for this one.
using MakeDrafter = std::function<std::unique_ptr<Drafter>(const Request&)>;

}  // namespace quire::engine
