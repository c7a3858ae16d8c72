// A test's array held against the expected one: one failure for the whole of it, at its worst element.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace quire::attn::testing {

inline void expect_near(const std::vector<float>& got, const std::vector<float>& expected, float tolerance,
                        const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  size_t worst = 0;
  float largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;  // also equal infinities
    const float error = std::abs(got[i] - expected[i]) / std::max(1.0f, std::abs(expected[i]));
    if (error <= largest) continue;  // false for NaN
    largest = error;
    worst = i;
    if (std::isnan(error)) break;
  }
  EXPECT_LE(largest, tolerance) << what << "[" << worst << "] is " << (got.empty() ? 0 : got[worst]) << ", expected "
                                << (got.empty() ? 0 : expected[worst]);
}

}  // namespace quire::attn::testing
