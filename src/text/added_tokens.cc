#include "text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/utf8.h"

namespace quire::text {
namespace {

// The character that ends where `end` is; U+0000 at the start of the text.
Utf8Char character_before(std::string_view text, size_t end) {
  if (end == 0) return {Utf8Char::State::cut, 0, 0};
  size_t begin = end - 1;
  while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
  return read_utf8(text.substr(begin, end - begin));
}

Utf8Char character_after(std::string_view text, size_t begin) {
  return begin < text.size() ? read_utf8(text.substr(begin)) : Utf8Char{Utf8Char::State::cut, 0, 0};
}

bool is_inside_word(std::string_view text, TextRange match) {
  return is_word_part(character_before(text, match.begin).code) || is_word_part(character_after(text, match.end).code);
}

TextRange with_space_around(std::string_view text, TextRange match, const AddedToken& token, size_t least) {
  if (token.lstrip) {
    Utf8Char before;
    while (match.begin > least && is_white_space((before = character_before(text, match.begin)).code))
      match.begin -= before.bytes;
  }
  if (token.rstrip) {
    Utf8Char after;
    while (is_white_space((after = character_after(text, match.end)).code)) match.end += after.bytes;
  }
  return match;
}

}  // namespace

bool any_within(std::span<const size_t> ascending, TextRange range) {
  const auto first = std::lower_bound(ascending.begin(), ascending.end(), range.begin);
  return first != ascending.end() && *first < range.end;
}

AddedTokenFinder::AddedTokenFinder(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  for (const Entry& entry : entries_) begins_[static_cast<uint8_t>(entry.text.front())] = true;
}

// Narrows the sorted entries byte by byte to those that begin as the text does. One that ends here sorts first.
const AddedTokenFinder::Entry* AddedTokenFinder::longest_at_start(std::string_view text) const {
  auto first = entries_.begin(), last = entries_.end();
  const Entry* longest = nullptr;
  for (size_t depth = 0; depth < text.size() && first != last; ++depth) {
    const auto byte_at = [&](const Entry& entry) { return static_cast<uint8_t>(entry.text[depth]); };
    const auto wanted = static_cast<uint8_t>(text[depth]);
    first = std::partition_point(first, last, [&](const Entry& entry) { return byte_at(entry) < wanted; });
    last = std::partition_point(first, last, [&](const Entry& entry) { return byte_at(entry) == wanted; });
    if (first != last && first->text.size() == depth + 1) longest = &*first++;
  }
  return longest;
}

std::vector<Section> AddedTokenFinder::sections(std::string_view utf8, bool parse_special,
                                                std::span<const size_t> never_special) const {
  std::vector<Section> found;
  size_t done = 0;  // all before is in `found`
  for (size_t at = 0; at < utf8.size();) {
    const Entry* entry = begins_[static_cast<uint8_t>(utf8[at])] ? longest_at_start(utf8.substr(at)) : nullptr;
    if (entry == nullptr) {
      ++at;
      continue;
    }
    TextRange match{at, at + entry->text.size()};
    if (entry->token.special && any_within(never_special, match)) {
      ++at;  // what it only covers may be a token of its own
      continue;
    }
    at = match.end;
    if (entry->token.special && !parse_special) continue;
    if (entry->token.single_word && is_inside_word(utf8, match)) continue;
    match = with_space_around(utf8, match, entry->token, done);
    if (match.begin > done) found.push_back({std::nullopt, {done, match.begin}});
    found.push_back({entry->token.id, match});
    at = done = match.end;
  }
  if (done < utf8.size()) found.push_back({std::nullopt, {done, utf8.size()}});
  return found;
}

bool is_word_part(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return code == 0x200C || code == 0x200D;
  }
}

}  // namespace quire::text
