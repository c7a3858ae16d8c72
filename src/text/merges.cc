#include "text/merges.h"

#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::text {

MergeReader::MergeReader(const StringTable& tokens, size_t merges) : tokens_(tokens) { merges_.reserve(merges); }

void MergeReader::add(std::string_view left, std::string_view right) {
  joined_ = left;
  joined_ += right;
  merges_.push_back({id_of(left), id_of(right), id_of(joined_)});
}

void MergeReader::add(std::string_view pair) {
  const size_t space = pair.find(' ', 1);
  if (space == std::string_view::npos)
    throw CheckError(cat("merge ", merges_.size(), ", ", in_quotes(pair), ", is not two tokens"));
  add(pair.substr(0, space), pair.substr(space + 1));
}

int32_t MergeReader::id_of(std::string_view token) const {
  const auto id = tokens_.find(token);
  if (!id)
    throw CheckError(cat("merge ", merges_.size(), " has ", in_quotes(token), ", which is not in the vocabulary"));
  return *id;
}

}  // namespace quire::text
