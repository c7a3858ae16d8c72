// The ranked merges of a byte-pair vocabulary: which two adjacent tokens join into which, and which join goes first.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/string_table.h"

namespace quire::text {

struct Merge {  // of three token ids
  int32_t left;
  int32_t right;
  int32_t joined;
};

class MergeTable {
 public:
  struct Join {
    int32_t rank;  // the lowest goes first
    int32_t joined;
  };

  explicit MergeTable(std::span<const Merge> ranked);  // in order of rank; of a pair given twice the last counts

  const Join* find(int32_t left, int32_t right) const;  // null: the two do not join

 private:
  struct Slot {
    uint64_t pair = kFree;
    Join join{};
  };
  static constexpr uint64_t kFree = ~uint64_t{0};  // ids are not negative, so no pair looks like this
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
};

// Turns merges as files write them, in texts of tokens, into ids.
class MergeReader {
 public:
  MergeReader(const StringTable& tokens, size_t merges);  // tokens must outlive this

  // In order of rank. Throws CheckError when one of the three tokens is not in the vocabulary.
  void add(std::string_view left, std::string_view right);
  void add(std::string_view pair);  // "left right"
  std::vector<Merge> take() { return std::move(merges_); }

 private:
  int32_t id_of(std::string_view token) const;

  const StringTable& tokens_;
  std::vector<Merge> merges_;
  std::string joined_;  // reused
};

}  // namespace quire::text
