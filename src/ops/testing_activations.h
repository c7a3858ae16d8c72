// For tests: activations in memory of their own, filled with a pattern first, so that what an operation must leave
// alone is compared too.
#pragma once
#include "ops/activations.h"
#include "ops/testing_machines.h"

namespace quire::ops::testing {

struct Activations {
  Activations(int64_t room, int64_t width, Forms wanted)
      : rows(room),
        dim(width),
        forms(wanted),
        stride((width + 63) / 64 * 64),
        f32(rows * dim, -7.0f),
        bf16(rows * dim, 0x5a5a),
        q(2 * rows * stride, 99),
        scale(2 * rows * (dim / 32), -7.0f),
        sums(2 * rows * (dim / 16), 12345) {}

  ActivationRows view() {
    return {forms, rows, dim, f32.data(), bf16.data(), q.data(), stride, scale.data(), sums.data()};
  }

  friend bool operator==(const Activations& a, const Activations& b) {
    return same_bits(a.f32, b.f32) && same_bits(a.bf16, b.bf16) && same_bits(a.q, b.q) && same_bits(a.scale, b.scale) &&
           same_bits(a.sums, b.sums);
  }

  int64_t rows, dim;
  Forms forms;
  int64_t stride;
  Array<float> f32;
  Array<uint16_t> bf16;
  Array<int8_t> q;
  Array<float> scale;
  Array<int32_t> sums;
};

inline constexpr Forms kEveryForms[] = {
    {.f32 = true}, {.q8 = true}, {.f32 = true, .q8 = true}, {.q8x2 = true}, {.f32 = true, .q8x2 = true}};

}  // namespace quire::ops::testing
