// The pages that keys and values live in: who may use them, and when they return.
//
// A page is owned by the pool; everybody else holds counted references. Page 0 is reserved for good: it
// is where padded rows of materialised tables point, and it is never handed out.
//
// Errors   releasing or retaining a free page, the reserved page or an id outside the pool throws CheckError
//          and changes nothing.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace quire::kv {

inline constexpr PageId kReservedPage{0};

class PagePool {
 public:
  PagePool(int32_t pages, PageSize page_size);  // at least 2 pages, and every token slot fits an id

  // Takes out.size() pages, each with one reference, or none at all: false when too few are free.
  [[nodiscard]] bool allocate(std::span<PageId> out);
  void retain(PageId page);
  void release(PageId page);  // frees the page with the last reference

  int32_t references(PageId page) const;  // 0: free; the reserved page has one for good
  void check_live(PageId page) const;     // throws unless the page was handed out and is in use
  int32_t pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t free_pages() const { return static_cast<int32_t>(free_.size()); }
  int32_t used_pages() const { return pages() - 1 - free_pages(); }
  int32_t shared_pages() const { return shared_; }  // those with more than one reference
  PageSize page_size() const { return page_size_; }

  // Recounts everything from scratch: the free list holds each free page once and nothing else.
  void audit() const;

 private:
  void check_inside(PageId page) const;

  PageSize page_size_;
  std::vector<int32_t> references_;  // [pages]
  std::vector<PageId> free_;         // a stack: the page freed last is warm and is taken first
  int32_t shared_ = 0;
};

// What audit() holds the pool's books against: throws naming the first page that is in `free` but has references,
// has none but is not in `free`, or is there twice.
void audit_books(std::span<const int32_t> references, std::span<const PageId> free);

}  // namespace quire::kv
