// A result of f32 arithmetic held against the dense reference: one failure for each array, at its worst element.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/dense_reference.h"

namespace quire::attn::testing {

inline void expect_near(const char* what, const std::vector<float>& got, const std::vector<float>& expected) {
  constexpr float kTolerance = 2e-5f;
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
  EXPECT_LE(largest, kTolerance) << what << "[" << worst << "] is " << (got.empty() ? 0 : got[worst]) << ", expected "
                                 << (got.empty() ? 0 : expected[worst]);
}

inline void expect_dense(const Attention& got, const Attention& expected) {
  expect_near("out", got.out, expected.out);
  expect_near("lse", got.lse, expected.lse);
}

}  // namespace quire::attn::testing
