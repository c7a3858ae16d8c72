// The clock of the benchmarks, and the one statistic that a noisy machine allows.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace quire::bench {

inline double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

template <class Work>
double seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return seconds_between(begin, std::chrono::steady_clock::now());
}

// At least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace quire::bench
