#include "kv/window_pool.h"

#include <algorithm>

namespace quire::kv {
namespace {

TokenCount checked_window(TokenCount window) {
  check(window.value >= 0, "a window of ", window, " tokens makes no sense");
  return window;
}

}  // namespace

WindowPool::WindowPool(int32_t pages, PageSize page_size, int32_t rows, int32_t tokens_per_row, TokenCount window,
                       Place place)
    : pool_(pages, page_size), table_(pool_, rows, tokens_per_row, place), window_(checked_window(window)) {}

void WindowPool::advance(RequestRow row, int32_t next_position) {
  check(next_position >= 0, "request row ", row, " has no position ", next_position);
  const int32_t first_visible = std::max(0, next_position - window_.value);
  const int32_t first_needed = first_visible >> pool_.page_size().shift();
  const int32_t first_kept = table_.first_page(row);
  check(first_needed >= first_kept, "request row ", row, " cannot go back to position ", next_position,
        ": its window starts on page ", first_needed, " and the pages before ", first_kept, " were given back");
  const int32_t reserved = static_cast<int32_t>(table_.pages(row).size());
  // A row that has not grown up to its window yet gives back what it has; first_kept never exceeds that.
  table_.release_pages(row, first_kept, std::min(first_needed, reserved));
}

}  // namespace quire::kv
