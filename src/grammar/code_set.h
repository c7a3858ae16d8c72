// Sets of Unicode's characters, by code point, and the way from UTF-8 to code points and back.
//
// No set holds a surrogate, which is no character, nor NUL, which ends strings in too many places: what is built from
// sets is valid UTF-8 without NUL.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace quire::grammar {

struct CodeRange {
  char32_t first;
  char32_t last;  // included
  friend bool operator==(const CodeRange&, const CodeRange&) = default;
};

using CodeSet = std::vector<CodeRange>;  // ascending, with gaps between

CodeSet code_set(std::vector<CodeRange> ranges);  // in any order, overlapping or not
CodeSet all_but(const CodeSet& set);
CodeSet without(const CodeSet& set, const CodeSet& left_out);

std::u32string code_points(std::string_view utf8);  // throws Refused for what is no UTF-8
std::string utf8(char32_t code);

}  // namespace quire::grammar
