#include "grammar/code_set.h"

#include <algorithm>

#include "base/refused.h"
#include "base/utf8.h"

namespace quire::grammar {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF, kLastCode = 0x10FFFF;

CodeSet complement(const CodeSet& set) {
  CodeSet gaps;
  char32_t next = 0;
  for (const CodeRange& range : set) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCode) gaps.push_back({next, kLastCode});
  return gaps;
}

CodeSet merged(std::vector<CodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  CodeSet set;
  for (const CodeRange& range : ranges) {
    if (set.empty() || range.first > set.back().last + 1) {
      set.push_back(range);
    } else {
      set.back().last = std::max(set.back().last, range.last);
    }
  }
  return set;
}

}  // namespace

CodeSet code_set(std::vector<CodeRange> ranges) { return without(merged(std::move(ranges)), {}); }

CodeSet all_but(const CodeSet& set) { return without({{0, kLastCode}}, set); }

CodeSet without(const CodeSet& set, const CodeSet& left_out) {
  // What is left out of a set is added to its complement, and so are the codes that no set has.
  CodeSet outside = complement(set);
  outside.insert(outside.end(), left_out.begin(), left_out.end());
  outside.insert(outside.end(), {{0, 0}, {kFirstSurrogate, kLastSurrogate}});
  return complement(merged(std::move(outside)));
}

std::u32string code_points(std::string_view utf8) {
  std::u32string codes;
  codes.reserve(utf8.size());
  for (size_t at = 0; at < utf8.size();) {
    const Utf8Char next = read_utf8(utf8.substr(at));
    check_input(next.state == Utf8Char::State::whole, "byte ", at, " is no UTF-8");
    codes.push_back(next.code);
    at += next.bytes;
  }
  return codes;
}

std::string utf8(char32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

}  // namespace quire::grammar
