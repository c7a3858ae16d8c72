// Which pages hold which tokens: a radix tree over token ids, in whole pages, shared by all requests.
//
//   (salt "")  root
//                |-- [ 5 9 2 7 | 1 1 8 3 ]  pages 12, 40                     a node: a run of pages and their tokens
//                |             |-- [ 6 6 0 4 ]  page 41
//                |             `-- [ 2 2 9 1 | 7 7 7 0 ]  pages 51, 17      children differ in their first page
//                `-- [ 8 8 8 8 ]  page 33
//   (salt "b") another root: texts of different salts never share
//
// The tree holds one counted reference for each of its pages; requests that use a page hold their own, so what a
// request still uses is never evicted: eviction takes the least recently used leaf pages that only the tree holds.
//
// Errors   inserting a page that is not in use throws CheckError and changes nothing.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "kv/page_pool.h"

namespace quire::kv {

class PrefixTree {
 public:
  explicit PrefixTree(PagePool& pool);
  ~PrefixTree();  // gives its references back
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The pages of the longest cached prefix of `tokens`, whole pages only; marks them as just used. The caller retains
  // what it uses before the next evict().
  std::vector<PageId> match(std::string_view salt, std::span<const int32_t> tokens);
  // Says that `pages` hold the keys and values of `tokens` (as many whole pages as fit; tokens beyond are ignored). The
  // tree retains the pages it did not have. Where it already has another page for the same tokens it keeps its own, and
  // names it: the caller may use that one instead of its own, so that nothing is held twice.
  struct Kept {
    int32_t index;  // in `pages`
    PageId page;    // the tree's
  };
  std::vector<Kept> insert(std::string_view salt, std::span<const int32_t> tokens, std::span<const PageId> pages);
  // Releases up to `pages` pages, least recently used first; returns how many came free.
  int32_t evict(int32_t pages);
  void clear();  // releases everything that the tree holds

  int32_t cached_pages() const;     // all pages of the tree
  int32_t evictable_pages() const;  // those that evict() could free now, one after the other
  void audit() const;               // recounts; every page live, every child's key distinct, counts true

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::kv
