// Turns merges as files write them, in texts of tokens, into ids.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/merge_table.h"
#include "text/string_table.h"

namespace quire::text {

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
