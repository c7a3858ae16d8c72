// A result of f32 arithmetic held against the dense reference.
#pragma once
#include "attn/dense_reference.h"
#include "attn/expect_near.h"

namespace quire::attn::testing {

inline void expect_dense(const Attention& got, const Attention& expected) {
  constexpr float kTolerance = 2e-5f;
  expect_near(got.out, expected.out, kTolerance, "out");
  expect_near(got.lse, expected.lse, kTolerance, "lse");
}

}  // namespace quire::attn::testing
