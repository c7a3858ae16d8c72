// Byte-pair encoding: one piece of text becomes tokens by merging neighbours, the best pair first, until none merges.
//
// Which pair is best: the lowest rank in the list of merges or, in vocabularies that have scores instead, the merge
// into the token of the highest score (then the longer left part, the longer right part, the lower id); of equals the
// leftmost. Candidates wait in a heap, so n characters take O(n log n), whatever the text.
//
// Memory   32 bytes for each byte of a piece by ranks, 40 by scores; twice as much for a piece that all but merges at
// once.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/merges.h"
#include "text/vocabulary.h"

namespace quire::text {

class Bpe {
 public:
  explicit Bpe(const Vocabulary& vocabulary);  // which must outlive this

  struct Symbol {  // a token so far, in the chain of those not merged into their left neighbours
    int32_t id;
    uint32_t begin;          // in the piece
    uint32_t length : 31;    // 0: merged away
    uint32_t spelled : 1;    // the token spells these bytes: not a byte of a character that fell back, and not unknown
    int32_t previous, next;  // places in the chain; -1: none
  };
  using Symbols = std::vector<Symbol>;  // working memory, reused from piece to piece

  void append_ids(std::string_view piece, Symbols& symbols, std::vector<int32_t>& ids) const;  // below 2 GiB

 private:
  std::optional<int32_t> find(std::string_view text) const;  // a token that merges may give
  void spell(std::string_view piece, Symbols& symbols) const;
  void add_unspelled(std::string_view character, uint32_t begin, Symbols& symbols) const;
  size_t character_length(std::string_view text) const;

  const Vocabulary& vocabulary_;
  MergeTable merges_;
  std::array<std::optional<int32_t>, 256> byte_ids_;  // byte_bpe: the token of each byte; spm_bpe: its <0xXX>
};

}  // namespace quire::text
