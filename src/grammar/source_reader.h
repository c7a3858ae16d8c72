// What the readers of regular expressions and of EBNF share: a place in a text of characters, and errors that name it.
//
// Errors   Refused, "<language>: <what is wrong> at character <place>".
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/refused.h"
#include "grammar/code_set.h"

namespace quire::grammar {

inline constexpr int32_t kMostRepeats = 10'000;  // of one part, as a source may ask for

class SourceReader {
 public:
  SourceReader(std::string language, std::string_view source, int most_depth);

  bool at_end() const { return at_ == codes_.size(); }
  char32_t peek(size_t ahead = 0) const { return at_ + ahead < codes_.size() ? codes_[at_ + ahead] : U'\0'; }
  bool looking_at(std::u32string_view expected) const { return codes_.compare(at_, expected.size(), expected) == 0; }
  char32_t take();                  // throws at the end
  bool take_if(char32_t expected);  // false: something else is there
  bool take_if(std::u32string_view expected);
  int32_t take_number(const char* what);   // decimal digits, no more than kMostRepeats
  char32_t take_hexadecimal(int digits);   // a code point
  char32_t take_character(char32_t code);  // code itself, unless no text may hold it
  // What the letter after a backslash stands for in every language: \n, \r, \t, \f, \v and two digits after \x.
  std::optional<char32_t> take_usual_escape(char32_t letter);

  void enter();  // one level deeper; throws beyond the limit
  void leave() { --depth_; }

  size_t place() const { return at_; }
  void return_to(size_t place) { at_ = place; }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Refused(cat(language_, ": ", parts..., " at character ", at_ + 1));
  }

 private:
  std::string language_;
  std::u32string codes_;
  size_t at_ = 0;
  int most_depth_;
  int depth_ = 0;
};

}  // namespace quire::grammar
