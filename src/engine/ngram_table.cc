#include "engine/ngram_table.h"

#include <algorithm>

namespace quire::engine {
namespace {

uint64_t hash_of(std::span<const int32_t> run) {
  uint64_t hash = 0;
  for (const int32_t token : run) hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

}  // namespace

// Its own, or the free one where it would be put.
size_t NgramTable::slot_of(std::span<const int32_t> text, std::span<const int32_t> run) const {
  const size_t last = places_.size() - 1;
  size_t slot = hash_of(run) & last;
  const auto is_other = [&](const Place& place) {
    return place.after != 0 && !std::equal(run.begin(), run.end(), text.begin() + place.after - n_);
  };
  while (is_other(places_[slot])) slot = (slot + 1) & last;
  return slot;
}

void NgramTable::add(std::span<const int32_t> text, int32_t position) {
  if (position < n_) return;
  if (2 * used_ >= places_.size()) grow(text);
  Place& place = places_[slot_of(text, text.subspan(position - n_, n_))];
  used_ += place.after == 0;
  place.branches = place.branches || (place.after != 0 && text[place.after] != text[position]);
  place.after = position;
}

NgramTable::Place NgramTable::find(std::span<const int32_t> text, std::span<const int32_t> run) const {
  return places_[slot_of(text, run)];
}

void NgramTable::grow(std::span<const int32_t> text) {
  std::vector<Place> before(2 * places_.size());
  std::swap(before, places_);
  for (const Place& place : before)
    if (place.after != 0) places_[slot_of(text, text.subspan(place.after - n_, n_))] = place;
}

}  // namespace quire::engine
