#include "grammar/code_set.h"

#include <algorithm>

#include "base/check.h"
#include "base/refused.h"

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

// How many bytes a character takes, by its first; 0: it begins none.
size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return 2;
  if (first >= 0xE0 && first < 0xF0) return 3;
  if (first >= 0xF0 && first < 0xF5) return 4;
  return 0;
}

// Reads the character at `at` and moves past it.
char32_t read(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = length_of(byte(at));
  check_input(length > 0 && at + length <= text.size(), "byte ", at, " is no UTF-8");
  char32_t code = length == 1 ? byte(at) : byte(at) & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    check_input((byte(at + i) & 0xC0) == 0x80, "byte ", at + i, " is no UTF-8");
    code = code << 6 | (byte(at + i) & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  check_input(code >= kLeast[length] && code <= kLastCode && !(code >= kFirstSurrogate && code <= kLastSurrogate),
              "byte ", at, " is no UTF-8");
  at += length;
  return code;
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
  for (size_t at = 0; at < utf8.size();) codes.push_back(read(utf8, at));
  return codes;
}

void append_utf8(std::string& text, char32_t code) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  const auto add_following = [&](int shift) { add(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add_following(0);
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add_following(6);
    add_following(0);
  } else {
    add(0xF0 | code >> 18);
    add_following(12);
    add_following(6);
    add_following(0);
  }
}

std::string utf8(char32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

}  // namespace quire::grammar
