#include "serve/chat_marks.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "serve/api_error.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

// Unicode's noncharacters in one piece: no text that means something has them.
constexpr char32_t kFirstMark = 0xFDD0, kLastMark = 0xFDEF;

uint8_t byte_of(char letter) { return static_cast<uint8_t>(letter); }

bool contains(const ordered_json& value, std::string_view text) {
  if (value.is_string()) return value.get_ref<const std::string&>().find(text) != std::string::npos;
  if (!value.is_structured()) return false;
  for (const auto& [key, part] : value.items())
    if (key.find(text) != std::string::npos || contains(part, text)) return true;
  return false;
}

}  // namespace

SpecialSpellings::SpecialSpellings(const text::Vocabulary& vocabulary) {
  for (const text::AddedToken& token : vocabulary.added)
    if (token.special && !vocabulary.tokens[token.id].empty()) spellings_.push_back(vocabulary.tokens[token.id]);
  std::sort(spellings_.begin(), spellings_.end());
  for (const std::string_view spelling : spellings_) {
    begins_[byte_of(spelling.front())] = ends_[byte_of(spelling.back())] = true;
    longest_ = std::max(longest_, spelling.size());
  }
}

std::vector<size_t> SpecialSpellings::places(std::string_view text) const {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  text = text.substr(0, text.find_last_not_of(kSpace) + 1);  // templates trim
  std::vector<size_t> places;
  if (ends_at(text.substr(begin))) places.push_back(begin);
  for (size_t at = begin; at < text.size(); ++at)
    if (begins_[byte_of(text[at])] && spelled_at(text.substr(at)) && (places.empty() || places.back() != at))
      places.push_back(at);
  return places;
}

// Narrows the sorted spellings byte by byte to those that begin as the text does. One that ends here sorts first.
bool SpecialSpellings::spelled_at(std::string_view text) const {
  auto first = spellings_.begin(), last = spellings_.end();
  for (size_t depth = 0; depth < text.size() && first != last; ++depth) {
    const auto byte_at = [&](std::string_view spelling) { return byte_of(spelling[depth]); };
    const uint8_t wanted = byte_of(text[depth]);
    first = std::partition_point(first, last, [&](std::string_view spelling) { return byte_at(spelling) < wanted; });
    last = std::partition_point(first, last, [&](std::string_view spelling) { return byte_at(spelling) == wanted; });
    if (first != last && first->size() == depth + 1) return true;
  }
  return first != last;
}

bool SpecialSpellings::ends_at(std::string_view text) const {
  text = text.substr(0, longest_);
  if (std::none_of(text.begin(), text.end(), [&](char letter) { return ends_[byte_of(letter)]; })) return false;
  return std::any_of(spellings_.begin(), spellings_.end(), [&](std::string_view spelling) {
    for (size_t cut = 1; cut < spelling.size(); ++cut)
      if (text.starts_with(spelling.substr(cut))) return true;
    return false;
  });
}

void Marks::mark(ordered_json& value) {
  if (!is_needed(value)) return;
  choose_mark(value);
  mark_all(value);
}

bool Marks::is_needed(const ordered_json& value) const {
  if (value.is_string()) return !spellings_.places(value.get_ref<const std::string&>()).empty();
  if (!value.is_structured()) return false;
  for (const auto& [key, part] : value.items())
    if ((value.is_object() && !spellings_.places(key).empty()) || is_needed(part)) return true;
  return false;
}

void Marks::choose_mark(const ordered_json& value) {
  for (char32_t code = kFirstMark; code <= kLastMark; ++code) {
    mark_.clear();
    append_utf8(mark_, code);
    if (!contains(value, mark_)) return;
  }
  throw ApiError(400, "the texts hold all of Unicode's noncharacters from U+FDD0 to U+FDEF", "messages");
}

std::string Marks::marked(std::string_view text) const {
  std::string result;
  size_t done = 0;
  for (const size_t place : spellings_.places(text)) {
    result.append(text.substr(done, place - done)).append(mark_);
    done = place;
  }
  return result.append(text.substr(done));
}

void Marks::mark_all(ordered_json& value) const {
  if (value.is_string()) {
    value = marked(value.get_ref<const std::string&>());
  } else if (value.is_array()) {
    for (ordered_json& part : value) mark_all(part);
  } else if (value.is_object()) {
    ordered_json with_keys = ordered_json::object();
    for (auto& [key, part] : value.items()) {
      mark_all(part);
      with_keys[marked(key)] = std::move(part);
    }
    value = std::move(with_keys);
  }
}

Marks::Text Marks::unmarked(std::string_view rendered) const {
  Text result;
  if (mark_.empty()) return {std::string(rendered), {}};
  for (size_t at = 0; at < rendered.size();) {
    const size_t next = std::min(rendered.find(mark_, at), rendered.size());
    result.text.append(rendered.substr(at, next - at));
    if (next < rendered.size() && (result.never_special.empty() || result.never_special.back() != result.text.size()))
      result.never_special.push_back(result.text.size());
    at = next + mark_.size();
  }
  return result;
}

}  // namespace quire::serve
