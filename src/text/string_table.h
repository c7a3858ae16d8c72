// Many short strings in one allocation, numbered from 0 in the order of adding, and found again by their text: the
// tokens of a vocabulary. Costs one hash and one copy a string, no allocation of its own for any.
//
// Views that it gives are good until the next add. find is safe from many threads while nobody adds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

class StringTable {
 public:
  void reserve(size_t strings, size_t bytes);
  int32_t add(std::string_view text);             // returns its number; of equal texts the last one added is found
  int32_t add_unfindable(std::string_view text);  // has a number and a text, but find does not know it

  int32_t size() const { return static_cast<int32_t>(ends_.size()); }
  std::string_view operator[](int32_t number) const;
  std::optional<int32_t> find(std::string_view text) const;

 private:
  struct Slot {
    uint32_t hash;
    int32_t number = kFree;
  };
  static constexpr int32_t kFree = -1;
  size_t slot_of(std::string_view text, uint32_t hash) const;  // where it is, or the free slot where it would be
  void grow(size_t strings);

  std::string bytes_;
  std::vector<size_t> ends_;  // [size] where each string ends in bytes_, and the next begins
  std::vector<Slot> slots_;   // open addressing, a power of two, at most half full
  size_t found_ = 0;          // slots in use
};

}  // namespace quire::text
