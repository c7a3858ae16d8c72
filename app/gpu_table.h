// A request table in the GPU's own memory, for benchmarks: request i has row i + 1 and pages_of[i] pages that
// lie anywhere.
#pragma once
#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "base/cuda.h"
#include "kv/request_table.h"

namespace quire::bench {

class GpuTable {
 public:
  GpuTable(std::span<const int32_t> pages_of, PageSize page_size, cuda::Stream& stream);
  kv::TableView view() const;

 private:
  int32_t requests_, width_, pool_pages_;
  PageSize page_size_;
  Buffer entries_;
};

}  // namespace quire::bench
