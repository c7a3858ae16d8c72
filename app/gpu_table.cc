#include "gpu_table.h"

#include <algorithm>
#include <random>

namespace quire::bench {

GpuTable::GpuTable(int32_t requests, int32_t pages_each, PageSize page_size, cuda::Stream& stream)
    : requests_(requests),
      width_(pages_each),
      page_size_(page_size),
      entries_(static_cast<size_t>(requests + 1) * pages_each * sizeof(PageId), Place::device) {
  const Buffer host(entries_.size(), Place::pinned);
  auto* const entries = reinterpret_cast<PageId*>(host.data());
  const int32_t pages = requests_ * width_;
  std::fill_n(entries, width_, PageId{0});
  for (int32_t i = 0; i < pages; ++i) entries[width_ + i] = {i + 1};
  std::shuffle(entries + width_, entries + width_ + pages, std::minstd_rand(1));
  stream.copy(entries_.data(), host.data(), host.size());
  stream.wait();
}

kv::TableView GpuTable::view() const {
  return {.pages = reinterpret_cast<const PageId*>(entries_.data()),
          .stride = width_,
          .rows = requests_ + 1,
          .width = width_,
          .page_size = page_size_,
          .pool_pages = requests_ * width_ + 1};
}

}  // namespace quire::bench
