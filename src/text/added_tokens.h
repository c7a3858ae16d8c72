// Finds the added tokens of a vocabulary in a text: the leftmost, of those the longest.
//
// Cost: linear in the text, times at most the length of the longest added token.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/vocabulary.h"

namespace quire::text {

struct Section {
  std::optional<int32_t> id;  // of an added token; none: text between them
  TextRange range;
};

bool any_within(std::span<const size_t> ascending, TextRange range);

class AddedTokenFinder {
 public:
  struct Entry {
    std::string text;  // not empty
    AddedToken token;
  };
  explicit AddedTokenFinder(std::vector<Entry> entries);

  // The whole text in sections, none of text empty. Without parse_special, special tokens stay text, and so do those
  // that cover a byte of never_special (ascending).
  std::vector<Section> sections(std::string_view utf8, bool parse_special,
                                std::span<const size_t> never_special = {}) const;

 private:
  const Entry* longest_at_start(std::string_view text) const;

  std::vector<Entry> entries_;      // sorted by text, so that those with a common beginning are neighbours
  std::array<bool, 256> begins_{};  // bytes that any of them begins with
};

bool is_word_part(char32_t code);  // letters, marks, numbers that are digits or letters, connectors, joiners

}  // namespace quire::text
