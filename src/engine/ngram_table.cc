#include "engine/ngram_table.h"

#include <algorithm>

namespace quire::engine {

uint64_t NgramTable::hash_of(std::span<const int32_t> run) {
  uint64_t hash = 0;
  for (const int32_t token : run) hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

bool NgramTable::is_of(const Place& place, std::span<const int32_t> text, std::span<const int32_t> run) const {
  return place.after != 0 && std::equal(run.begin(), run.end(), text.begin() + place.after - n_);
}

// Its own, or the free one where it would be put, or that of another whose place it would take.
size_t NgramTable::slot_of(std::span<const int32_t> text, std::span<const int32_t> run) const {
  const size_t last = places_.size() - 1, home = hash_of(run) & last;
  for (size_t probe = 0; probe < std::min(kMostProbes, places_.size()); ++probe) {
    const size_t slot = (home + probe) & last;
    if (places_[slot].after == 0 || is_of(places_[slot], text, run)) return slot;
  }
  return home;
}

void NgramTable::add(std::span<const int32_t> text, int32_t position) {
  if (position < n_) return;
  if (2 * used_ >= places_.size()) grow(text);
  const std::span<const int32_t> run = text.subspan(position - n_, n_);
  Place& place = places_[slot_of(text, run)];
  used_ += place.after == 0;
  const bool is_known = is_of(place, text, run);
  place.branches = is_known && (place.branches || text[place.after] != text[position]);
  place.after = position;
}

NgramTable::Place NgramTable::find(std::span<const int32_t> text, std::span<const int32_t> run) const {
  const Place& place = places_[slot_of(text, run)];
  return is_of(place, text, run) ? place : Place{};
}

void NgramTable::grow(std::span<const int32_t> text) {
  std::vector<Place> before(2 * places_.size());
  std::swap(before, places_);
  used_ = 0;
  for (const Place& place : before) {
    if (place.after == 0) continue;
    Place& moved = places_[slot_of(text, text.subspan(place.after - n_, n_))];
    used_ += moved.after == 0;
    moved = place;
  }
}

}  // namespace quire::engine
