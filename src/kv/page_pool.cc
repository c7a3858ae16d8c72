#include "kv/page_pool.h"

#include <algorithm>
#include <limits>

namespace quire::kv {
namespace {

// Checked before the members are sized: a wrong count should say so, not run out of memory.
int32_t checked_pages(int32_t pages, PageSize page_size) {
  check(pages >= 2, "a page pool needs the reserved page and at least one more, got ", pages, " pages");
  const int64_t slots = static_cast<int64_t>(pages) * page_size.tokens();
  check(slots <= std::numeric_limits<int32_t>::max(), pages, " pages of ", page_size.tokens(), " tokens are ", slots,
        " token slots, more than a slot id can name");
  return pages;
}

}  // namespace

PagePool::PagePool(int32_t pages, PageSize page_size)
    : page_size_(page_size), references_(checked_pages(pages, page_size), 0) {
  references_[kReservedPage.value] = 1;
  free_.reserve(pages - 1);
  for (int32_t id = pages - 1; id > kReservedPage.value; --id) free_.push_back({id});
}

bool PagePool::allocate(std::span<PageId> out) {
  if (out.size() > free_.size()) return false;
  for (PageId& page : out) {
    page = free_.back();
    free_.pop_back();
    references_[page.value] = 1;
  }
  return true;
}

void PagePool::retain(PageId page) {
  check_live(page);
  int32_t& count = references_[page.value];
  check(count < std::numeric_limits<int32_t>::max(), "page ", page, " has ", count, " references and can take no more");
  if (++count == 2) ++shared_;
}

void PagePool::release(PageId page) {
  check_live(page);
  const int32_t left = --references_[page.value];
  if (left == 0) free_.push_back(page);
  if (left == 1) --shared_;
}

int32_t PagePool::references(PageId page) const {
  check_inside(page);
  return references_[page.value];
}

void PagePool::check_live(PageId page) const {
  check_inside(page);
  check(page != kReservedPage, "page ", page, " is reserved and has no owner");
  check(references_[page.value] > 0, "page ", page, " is free");
}

void PagePool::check_inside(PageId page) const {
  check(page.value >= 0 && page.value < pages(), "page ", page, " is outside the pool of ", pages(), " pages");
}

void PagePool::audit() const {
  audit_books(references_, free_);
  const auto shared = std::count_if(references_.begin(), references_.end(), [](int32_t count) { return count > 1; });
  check(shared == shared_, "audit: ", shared, " pages are shared and ", shared_, " are counted");
}

void audit_books(std::span<const int32_t> references, std::span<const PageId> free) {
  std::vector<bool> listed(references.size(), false);
  for (const PageId page : free) {
    check(page.value >= 0 && page.value < std::ssize(references), "audit: the free list holds page ", page,
          ", outside the pool of ", references.size(), " pages");
    check(!listed[page.value], "audit: page ", page, " is in the free list twice");
    check(references[page.value] == 0, "audit: page ", page, " is in the free list with ", references[page.value],
          " references");
    listed[page.value] = true;
  }
  for (size_t id = 0; id < references.size(); ++id) {
    check(references[id] >= 0, "audit: page ", id, " has ", references[id], " references");
    check(references[id] > 0 || listed[id], "audit: page ", id, " has no references and is not in the free list");
  }
  check(references[kReservedPage.value] == 1, "audit: the reserved page has ", references[kReservedPage.value],
        " references, not 1");
}

}  // namespace quire::kv
