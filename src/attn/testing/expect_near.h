// A test's array held against the expected one: one failure for the whole of it, at its worst element. And a result held
// against the dense reference, by default one of f32 arithmetic.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/testing/dense_reference.h"

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

inline void expect_dense(const Attention& got, const Attention& expected, float tolerance = 2e-5f) {
  expect_near(got.out, expected.out, tolerance, "out");
  expect_near(got.lse, expected.lse, tolerance, "lse");
}

}  // namespace quire::attn::testing
