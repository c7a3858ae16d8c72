#include "text/pre_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace quire::text {
namespace {

// A piece cut at a pattern: matches and what lies between them, in order.
struct Part {
  TextRange range;
  bool match;
};

void cut(RegexMatcher& matcher, std::string_view text, bool invert, std::vector<Part>& parts) {
  parts.clear();
  size_t done = 0;
  for_each_match(matcher, text, [&](TextRange match) {
    if (match.begin > done) parts.push_back({{done, match.begin}, invert});
    parts.push_back({match, !invert});
    done = match.end;
  });
  if (done < text.size()) parts.push_back({{done, text.size()}, invert});
}

// A match joins the part before it, if that is not a match which itself was joined.
void merge_with_previous(std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.match && !after_match && !merged.empty())
      merged.back().range.end = part.range.end;
    else
      merged.push_back(part);
    after_match = part.match;
  }
  parts = std::move(merged);
}

void merge_with_next(std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool before_match = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->match && !before_match && !merged.empty())
      merged.back().range.begin = part->range.begin;
    else
      merged.push_back(*part);
    before_match = part->match;
  }
  std::reverse(merged.begin(), merged.end());
  parts = std::move(merged);
}

void merge_neighbours(std::vector<Part>& parts) {
  std::vector<Part> merged;
  for (const Part& part : parts) {
    if (!merged.empty() && merged.back().match == part.match)
      merged.back().range.end = part.range.end;
    else
      merged.push_back(part);
  }
  parts = std::move(merged);
}

void apply(SplitBehavior behavior, std::vector<Part>& parts) {
  switch (behavior) {
    case SplitBehavior::isolated:
      return;
    case SplitBehavior::removed:
      std::erase_if(parts, [](const Part& part) { return part.match; });
      return;
    case SplitBehavior::merged_with_previous:
      return merge_with_previous(parts);
    case SplitBehavior::merged_with_next:
      return merge_with_next(parts);
    case SplitBehavior::contiguous:
      return merge_neighbours(parts);
  }
}

struct ApplyPreTokenizer {
  Pieces& pieces;
  const std::optional<Regex>& regex;
  bool at_start;

  std::string_view text_of(TextRange piece) const {
    return std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
  }

  void operator()(const Split& split) const {
    RegexMatcher matcher(*regex);
    std::vector<TextRange> ranges;
    std::vector<Part> parts;
    for (const TextRange piece : pieces.ranges) {
      cut(matcher, text_of(piece), split.invert, parts);
      apply(split.behavior, parts);
      for (const Part& part : parts)
        if (!part.range.empty()) ranges.push_back({piece.begin + part.range.begin, piece.begin + part.range.end});
    }
    pieces.ranges = std::move(ranges);
  }

  // Writes all pieces anew, each as rewrite(piece, is it the first) gives it.
  template <class Rewrite>
  void rewrite_pieces(Rewrite&& rewrite) const {
    Pieces rewritten;
    rewritten.text.reserve(pieces.text.size());
    for (const TextRange piece : pieces.ranges) {
      const size_t begin = rewritten.text.size();
      rewritten.text += rewrite(text_of(piece), piece.begin == 0);
      if (rewritten.text.size() > begin) rewritten.ranges.push_back({begin, rewritten.text.size()});
    }
    pieces = std::move(rewritten);
  }

  void operator()(const EnsurePrefix& prefix) const {
    rewrite_pieces([&](std::string_view piece, bool first) {
      const bool wanted = !piece.starts_with(prefix.text) && (!prefix.only_first || (first && at_start));
      return wanted ? cat(prefix.text, piece) : std::string(piece);
    });
  }

  void operator()(const Replace& replace) const {
    rewrite_pieces([&](std::string_view piece, bool) { return replaced(piece, replace.text, replace.with); });
  }
};

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& step : steps) {
    std::optional<Regex> regex;
    if (const auto* split = std::get_if<Split>(&step)) regex.emplace(split->pattern);
    if (const auto* replace = std::get_if<Replace>(&step))
      check(!replace->text.empty(), "a pre-tokenizer replaces the empty text");
    steps_.push_back({step, std::move(regex)});
  }
}

Pieces PreTokenizer::operator()(std::string utf8, bool at_start) const {
  Pieces pieces{std::move(utf8), {}};
  if (!pieces.text.empty()) pieces.ranges.push_back({0, pieces.text.size()});
  for (const Step& step : steps_) std::visit(ApplyPreTokenizer{pieces, step.regex, at_start}, step.what);
  return pieces;
}

}  // namespace quire::text
