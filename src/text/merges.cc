#include "text/merges.h"

#include <bit>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::text {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// Multiplying by an odd constant without structure spreads both ids over the high bits.
uint64_t spread(uint64_t pair) { return (pair * 0x9e3779b97f4a7c15u) >> 20; }

}  // namespace

MergeTable::MergeTable(std::span<const Merge> ranked) : slots_(std::bit_ceil(2 * ranked.size() + 2)) {
  int32_t rank = 0;
  for (const Merge& merge : ranked) {
    const uint64_t pair = pair_of(merge.left, merge.right);
    slots_[slot_of(pair)] = {pair, {rank, merge.joined}};
    ++rank;
  }
}

const MergeTable::Join* MergeTable::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_of(left, right))];
  return slot.pair == kFree ? nullptr : &slot.join;
}

size_t MergeTable::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t at = spread(pair) & mask;
  while (slots_[at].pair != kFree && slots_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

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
