// For tests of the operations by row: their inputs, and every kind of machine and team that must give the same bits.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/exec.h"

namespace quire::ops::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline constexpr int32_t kRowCounts[] = {0, 1, 3, 64, 257};

inline std::vector<float> random_floats(size_t count, uint64_t seed, float spread = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Every instruction set of this machine with one to three threads; made once, because starting threads takes its time.
inline const std::vector<std::unique_ptr<Exec>>& every_exec() {
  static const auto execs = [] {
    std::vector<std::unique_ptr<Exec>> made;
    for (const Isa isa : available_isas())
      for (const int threads : {1, 2, 3})
        made.push_back(std::make_unique<Exec>(ExecOptions{.threads = threads, .isa = isa}));
    return made;
  }();
  return execs;
}

template <class Body>
void with_every_exec(Body body) {
  for (const auto& exec : every_exec()) {
    SCOPED_TRACE(cat(to_string(exec->isa()), ", threads ", exec->threads()));
    body(*exec);
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace quire::ops::testing
