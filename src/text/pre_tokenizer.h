// How a text is cut into pieces that no token crosses: the steps that a tokenizer file lists, each applied to all
// pieces that the one before it left. Words of the steps are those of Hugging Face's `tokenizers`.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/normalizer.h"
#include "text/regex.h"

namespace quire::text {

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Split {
  std::string pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what lies between matches counts as the matches
};
struct EnsurePrefix {  // puts `text` before a piece that does not begin with it
  std::string text;
  bool only_first = false;  // only before the piece at the very start of the whole text
};
using PreTokenizerStep = std::variant<Split, EnsurePrefix, Replace>;

// Pieces and the text that they lie in. No piece is empty.
struct Pieces {
  std::string text;
  std::vector<TextRange> ranges;
};

class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);  // throws CheckError for a bad pattern

  Pieces operator()(std::string utf8, bool at_start) const;  // at_start: utf8 begins the whole text

 private:
  struct Step {
    PreTokenizerStep what;
    std::optional<Regex> regex;  // of Split
  };
  std::vector<Step> steps_;
};

}  // namespace quire::text
