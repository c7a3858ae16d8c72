#include "serve/metrics_histogram.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::serve {

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(std::make_unique<std::atomic<int64_t>[]>(bounds_.size() + 1)) {
  check(std::is_sorted(bounds_.begin(), bounds_.end()), "a histogram's bounds must ascend");
}

void Histogram::observe(double value, int64_t times) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[bound - bounds_.begin()].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
}

Histogram::Reading Histogram::read() const {
  Reading reading{.up_to = {}, .sum = sum_.load(std::memory_order_relaxed)};
  int64_t count = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i)
    reading.up_to.push_back(count += counts_[i].load(std::memory_order_relaxed));
  return reading;
}

}  // namespace quire::serve
