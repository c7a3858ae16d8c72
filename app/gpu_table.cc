#include "gpu_table.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace quire::bench {

GpuTable::GpuTable(std::span<const int32_t> pages_of, PageSize page_size, cuda::Stream& stream)
    : requests_(static_cast<int32_t>(pages_of.size())),
      width_(*std::max_element(pages_of.begin(), pages_of.end())),
      pool_pages_(std::accumulate(pages_of.begin(), pages_of.end(), 1)),
      page_size_(page_size),
      entries_(static_cast<size_t>(requests_ + 1) * width_ * sizeof(PageId), Place::device) {
  std::vector<PageId> pages(static_cast<size_t>(pool_pages_ - 1));
  for (int32_t i = 0; i < pool_pages_ - 1; ++i) pages[static_cast<size_t>(i)] = {i + 1};
  std::shuffle(pages.begin(), pages.end(), std::minstd_rand(1));
  const Buffer host(entries_.size(), Place::pinned);
  auto* const entries = reinterpret_cast<PageId*>(host.data());
  std::fill_n(entries, host.size() / sizeof(PageId), PageId{0});
  const PageId* next = pages.data();
  for (int32_t i = 0; i < requests_; ++i) {
    const int32_t count = pages_of[static_cast<size_t>(i)];
    std::copy_n(next, count, entries + (i + 1) * int64_t{width_});
    next += count;
  }
  stream.copy(entries_.data(), host.data(), host.size());
  stream.wait();
}

kv::TableView GpuTable::view() const {
  return {.pages = reinterpret_cast<const PageId*>(entries_.data()),
          .stride = width_,
          .rows = requests_ + 1,
          .width = width_,
          .page_size = page_size_,
          .pool_pages = pool_pages_};
}

}  // namespace quire::bench
