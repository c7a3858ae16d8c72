// Drafts from a request's own text, prompt and output: what followed the last time that it ended as it does now. It
// needs no other model, and finds loops, quotations, corrections and code that repeats itself.
//
//   text     the cat sat on the mat . the cat sat        the longest of the last 8, 5, 3, 2, 1 tokens that stood
//            ................ ^^                ^^^      before; after its newest place came "on", then as if that had
//   drafts   on the mat . the cat sat ...                come, and so on
//
// A draft is as likely as others with a match of its length were, apart for places that went on in one way and in
// several. These counts are shared by all drafters that one call of ngram_drafters() makes; a request's own luck, which
// its temperature decides as well, is a factor to them. Tokens that came are compared with what was proposed, verified
// or not, so it also learns while nothing is drafted.
//
// Memory   80 to 160 bytes a token of the text. A proposal costs some lookups a draft, and each new token some writes:
//          a long prompt is read in parts, in as many calls, and nothing is proposed before all is read.
#pragma once
#include <cstdint>

#include "engine/drafter.h"

namespace quire::engine {

MakeDrafter ngram_drafters();

}  // namespace quire::engine
