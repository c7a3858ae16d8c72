// A result held against the dense reference, by default one of f32 arithmetic.
#pragma once
#include "attn/dense_reference.h"
#include "attn/expect_near.h"

namespace quire::attn::testing {

inline void expect_dense(const Attention& got, const Attention& expected, float tolerance = 2e-5f) {
  expect_near(got.out, expected.out, tolerance, "out");
  expect_near(got.lse, expected.lse, tolerance, "lse");
}

}  // namespace quire::attn::testing
