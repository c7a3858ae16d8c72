#include "suggestion.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// Rows of the table of distances between prefixes: the last three are all that a swap looks back to.
size_t slips_between(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above, row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t wrong = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({wrong, above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 100;  // nobody means an option with more
  if (word.size() > kLongest) return "";
  std::string nearest;
  size_t fewest = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : known)
    if (const size_t slips = slips_between(word, candidate); slips < fewest) {
      fewest = slips;
      nearest = candidate;
    }
  return nearest;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(word, known);
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

}  // namespace quire
