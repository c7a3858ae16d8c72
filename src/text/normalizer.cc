#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

bool composes(UnicodeForm form) { return form == UnicodeForm::nfc || form == UnicodeForm::nfkc; }
bool is_compatible(UnicodeForm form) { return form == UnicodeForm::nfkc || form == UnicodeForm::nfkd; }

// Most texts end here: no character below U+0300 takes part in NFC, none below U+0080 in any form. The first bytes of
// higher characters are all greater than these.
bool is_normal_already(std::string_view utf8, UnicodeForm form) {
  const uint8_t first_to_look_at = form == UnicodeForm::nfc ? 0xCC : 0xC2;
  return std::none_of(utf8.begin(), utf8.end(), [&](char c) { return static_cast<uint8_t>(c) >= first_to_look_at; });
}

void append_decomposed(std::vector<int32_t>& codes, char32_t code, bool compatible) {
  const int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0);
  int32_t parts[32];  // the longest decomposition has 18
  int last_boundclass = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, std::size(parts),
                                             static_cast<utf8proc_option_t>(options), &last_boundclass);
  check(count >= 0 && count <= std::ssize(parts), "U+", static_cast<uint32_t>(code), " has no decomposition");
  codes.insert(codes.end(), parts, parts + count);
}

int combining_class(int32_t code) { return utf8proc_get_property(code)->combining_class; }

// Runs of marks go into the order of their classes. utf8proc's own ordering swaps neighbours, which long runs make
// quadratic.
void order_marks(std::vector<int32_t>& codes) {
  for (auto run = codes.begin(); run != codes.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, codes.end(), [](int32_t code) { return combining_class(code) == 0; });
    std::stable_sort(run, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

void compose(std::vector<int32_t>& codes) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const auto left = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options);
  check(left >= 0, "composing characters failed: ", utf8proc_errmsg(left));
  codes.resize(static_cast<size_t>(left));
}

size_t leading_space(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Utf8Char next = read_utf8(text.substr(bytes));
    if (!is_white_space(next.code)) break;
    bytes += next.bytes;
  }
  return bytes;
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (text[last] & 0xC0) == 0x80) --last;
    if (!is_white_space(read_utf8(text.substr(last)).code)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

std::string with_matches_replaced(std::string_view in, const Regex& regex, std::string_view with) {
  std::string out;
  size_t copied = 0;
  RegexMatcher matcher(regex);
  for_each_match(matcher, in, [&](TextRange match) {
    out += in.substr(copied, match.begin - copied);
    out += with;
    copied = match.end;
  });
  return out += in.substr(copied);
}

struct ApplyNormalizer {
  std::string_view text;
  const std::optional<Regex>& regex;

  std::string operator()(UnicodeForm form) const { return normalized(text, form); }
  std::string operator()(const Prepend& step) const { return text.empty() ? "" : cat(step.text, text); }
  std::string operator()(const Replace& step) const { return replaced(text, step.text, step.with); }
  std::string operator()(const ReplaceMatches& step) const { return with_matches_replaced(text, *regex, step.with); }
  std::string operator()(const Strip& step) const {
    std::string_view left = text;
    if (step.left) left.remove_prefix(leading_space(left));
    return std::string(step.right ? without_trailing_space(left) : left);
  }
};

}  // namespace

std::string normalized(std::string_view utf8, UnicodeForm form) {
  if (is_normal_already(utf8, form)) return std::string(utf8);
  std::vector<int32_t> codes;
  codes.reserve(utf8.size());
  for (std::string_view left = utf8; !left.empty();) {
    const Utf8Char next = read_utf8(left);
    append_decomposed(codes, next.code, is_compatible(form));
    left.remove_prefix(next.bytes);
  }
  order_marks(codes);
  if (composes(form)) compose(codes);
  std::string text;
  text.reserve(utf8.size());
  for (const int32_t code : codes) append_utf8(text, static_cast<char32_t>(code));
  return text;
}

std::string replaced(std::string_view in, std::string_view text, std::string_view with) {
  std::string out;
  out.reserve(in.size());
  size_t copied = 0;
  for (size_t at; (at = in.find(text, copied)) != std::string_view::npos; copied = at + text.size()) {
    out += in.substr(copied, at - copied);
    out += with;
  }
  return out += in.substr(copied);
}

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  for (const NormalizerStep& step : steps) {
    std::optional<Regex> regex;
    if (const auto* matches = std::get_if<ReplaceMatches>(&step)) regex.emplace(matches->pattern);
    if (const auto* replace = std::get_if<Replace>(&step))
      check(!replace->text.empty(), "a normalizer replaces the empty text");
    steps_.push_back({step, std::move(regex)});
  }
}

std::string Normalizer::operator()(std::string_view utf8) const {
  std::string text(utf8);
  for (const Step& step : steps_) text = std::visit(ApplyNormalizer{text, step.regex}, step.what);
  return text;
}

}  // namespace quire::text
