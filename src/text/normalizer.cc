#include "text/normalizer.h"

#include <cstddef>

#include "base/check.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

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
