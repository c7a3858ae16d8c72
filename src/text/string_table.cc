#include "text/string_table.h"

#include <bit>
#include <functional>
#include <utility>

namespace quire::text {
namespace {

uint32_t hash_of(std::string_view text) {
  const uint64_t hash = std::hash<std::string_view>{}(text);
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

}  // namespace

void StringTable::reserve(size_t strings, size_t bytes) {
  bytes_.reserve(bytes);
  ends_.reserve(strings);
  grow(strings);
}

int32_t StringTable::add(std::string_view text) {
  if (slots_.size() < 2 * (found_ + 1)) grow(2 * (found_ + 1));
  const uint32_t hash = hash_of(text);
  Slot& slot = slots_[slot_of(text, hash)];
  if (slot.number == kFree) ++found_;
  slot = {hash, add_unfindable(text)};
  return slot.number;
}

int32_t StringTable::add_unfindable(std::string_view text) {
  bytes_ += text;
  ends_.push_back(bytes_.size());
  return size() - 1;
}

std::string_view StringTable::operator[](int32_t number) const {
  const size_t begin = number == 0 ? 0 : ends_[number - 1];
  return std::string_view(bytes_).substr(begin, ends_[number] - begin);
}

std::optional<int32_t> StringTable::find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[slot_of(text, hash_of(text))];
  return slot.number == kFree ? std::nullopt : std::optional(slot.number);
}

size_t StringTable::slot_of(std::string_view text, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].number != kFree && !(slots_[at].hash == hash && (*this)[slots_[at].number] == text))
    at = (at + 1) & mask;
  return at;
}

void StringTable::grow(size_t strings) {
  const size_t slots = std::bit_ceil(2 * strings + 2);
  if (slots <= slots_.size()) return;
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots));
  for (const Slot& slot : old) {
    if (slot.number == kFree) continue;
    size_t at = slot.hash & (slots - 1);
    while (slots_[at].number != kFree) at = (at + 1) & (slots - 1);
    slots_[at] = slot;
  }
}

}  // namespace quire::text
