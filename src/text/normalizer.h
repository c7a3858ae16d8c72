// What happens to a text before it is cut into pieces: the steps that a tokenizer file lists, in their order.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace quire::text {

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };
struct Prepend {  // puts `text` before a text that is not empty
  std::string text;
};
struct Replace {  // puts `with` for every occurrence
  std::string text;
  std::string with;
};
struct ReplaceMatches {  // puts `with` for every match
  std::string pattern;
  std::string with;
};
struct Strip {  // takes white space off the ends
  bool left = true;
  bool right = true;
};
using NormalizerStep = std::variant<UnicodeForm, Prepend, Replace, ReplaceMatches, Strip>;

// Valid UTF-8 in, valid UTF-8 out; in time linear in the text but for the sorting of long runs of marks.
std::string normalized(std::string_view utf8, UnicodeForm form);
std::string replaced(std::string_view in, std::string_view text, std::string_view with);  // text is not empty

class Normalizer {
 public:
  explicit Normalizer(const std::vector<NormalizerStep>& steps);  // throws CheckError for a bad pattern

  std::string operator()(std::string_view utf8) const;

 private:
  struct Step {
    NormalizerStep what;
    std::optional<Regex> regex;  // of ReplaceMatches
  };
  std::vector<Step> steps_;
};

}  // namespace quire::text
