// A regular expression as tokenizer files write them, compiled once and matched over UTF-8.
//
// Patterns are written for Oniguruma. They run here on PCRE2, after small repairs where the two read the same letters
// differently: \s and \w mean Unicode's White_Space and word characters, ^ and $ hold at every line. What cannot be
// repaired (\b, \h, set operations inside brackets, ...) is refused.
//
// Before   the text is valid UTF-8; it is not checked again for each match.
// Errors   CheckError: a pattern that does not compile or is refused. Refused: a match that takes more than PCRE2's
// limits
//          of steps, memory or depth, which bound any pattern on any text.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace quire::text {

struct TextRange {
  size_t begin;
  size_t end;
  bool empty() const { return begin == end; }
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

class Regex {
 public:
  explicit Regex(std::string_view pattern);
  Regex(Regex&&) noexcept;
  ~Regex();

  static std::string escaped(std::string_view text);  // the pattern that matches exactly this text

 private:
  friend class RegexMatcher;
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

// The working memory of matching, for one thread. The regex must outlive it.
class RegexMatcher {
 public:
  explicit RegexMatcher(const Regex& regex);
  RegexMatcher(RegexMatcher&&) noexcept;
  ~RegexMatcher();

  // The first match that begins at `from` or later. False: none.
  bool find(std::string_view text, size_t from, TextRange& match);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Calls on_match(range) for all matches from left to right, none overlapping. After an empty match the search goes on
// one character further.
template <class OnMatch>
void for_each_match(RegexMatcher& matcher, std::string_view text, OnMatch&& on_match) {
  TextRange match{0, 0};
  for (size_t from = 0; from <= text.size() && matcher.find(text, from, match);) {
    on_match(match);
    from = match.end;
    if (!match.empty()) continue;
    do ++from;
    while (from < text.size() && (text[from] & 0xC0) == 0x80);
  }
}

}  // namespace quire::text
