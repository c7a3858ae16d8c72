// Counts of values up to fixed bounds, as Prometheus' histograms are. Observed from many threads without a lock.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace quire::serve {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // ascending

  void observe(double value, int64_t times = 1);

  // What was observed so far. Values that come meanwhile are in all of it but the sum, or in none.
  struct Reading {
    std::vector<int64_t> up_to;  // [bounds + 1] values <= that bound; the last: all
    double sum;
  };
  Reading read() const;
  const std::vector<double>& bounds() const { return bounds_; }

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<int64_t>[]> counts_;  // [bounds + 1] above the bound before, up to this one
  std::atomic<double> sum_ = 0;
};

}  // namespace quire::serve
