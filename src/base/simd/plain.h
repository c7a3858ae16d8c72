// Four floats in an array, for machines without AVX2 and as the version anybody can read. A product and its sum round
// separately here, so its bits differ from the fused ones.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"

namespace quire::simd {

struct Plain {
  static constexpr int kWidth = 4;
  static constexpr int kRegisters = 16;
  struct F {
    float lane[kWidth];
  };

  template <class Op>
  static F each(Op op) {
    F result;
    for (int i = 0; i < kWidth; ++i) result.lane[i] = op(i);
    return result;
  }
  static F zero() { return set1(0.0f); }
  static F set1(float x) {
    return each([&](int) { return x; });
  }
  static F load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, F x) {
    for (int i = 0; i < kWidth; ++i) p[i] = x.lane[i];
  }
  static F add(F a, F b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static F max(F a, F b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F round(F x) {  // exact for the magnitudes that matter to exp2; NaN stays NaN
    return each([&](int i) { return (x.lane[i] + 12582912.0f) - 12582912.0f; });
  }
  // p * 2^whole, or 0 where x < -126.
  static F times_power_of_two(F p, F whole, F x) {
    return each([&](int i) {
      if (x.lane[i] < -126.0f) return 0.0f;
      const int32_t power = whole.lane[i] == whole.lane[i] ? static_cast<int32_t>(whole.lane[i]) : 0;
      return std::bit_cast<float>(std::bit_cast<int32_t>(p.lane[i]) + power * (1 << 23));
    });
  }
  // y where it exceeds x by more than slack, else x.
  static F raised(F x, F y, float slack) {
    return each([&](int i) { return y.lane[i] > x.lane[i] + slack ? y.lane[i] : x.lane[i]; });
  }
  static F zero_if_empty(F x) {  // -inf becomes 0
    return each([&](int i) { return x.lane[i] == -__builtin_inff() ? 0.0f : x.lane[i]; });
  }
  static F keep_between(F x, int first, int low, int high, F other) {
    return each([&](int i) { return low <= first + i && first + i < high ? x.lane[i] : other.lane[i]; });
  }
  // Lane i: the greatest lane of rows[i].
  static F max_of_rows(F (&rows)[kWidth]) {
    return each([&](int i) {
      float most = rows[i].lane[0];
      for (float value : rows[i].lane) most = most > value ? most : value;
      return most;
    });
  }
  static float reduce_add(F x) { return (x.lane[0] + x.lane[1]) + (x.lane[2] + x.lane[3]); }
  static float first(F x) { return x.lane[0]; }

  template <Dtype T>
  static F load_as(const std::byte* p) {
    if constexpr (T == Dtype::f32) {
      return load(reinterpret_cast<const float*>(p));
    } else if constexpr (T == Dtype::bf16) {
      const uint16_t* bits = reinterpret_cast<const uint16_t*>(p);
      return each([&](int i) { return std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16); });
    } else {
      return each([&](int i) { return load_element(T, p, i); });
    }
  }
  template <Dtype T>
  static void store_as(std::byte* p, F x) {
    for (int i = 0; i < kWidth; ++i) store_element(T, p, i, x.lane[i]);
  }
  // words[i] := 32-bit word i of each of the rows at rows[...] + offset, for i < count; count is kWidth or less.
  struct Words {
    uint32_t lane[kWidth];
  };
  static void load_words(Words (&words)[kWidth], const std::byte* const* rows, int64_t offset, int count) {
    for (int row = 0; row < kWidth; ++row)
      for (int i = 0; i < count; ++i) std::memcpy(&words[i].lane[row], rows[row] + offset + i * 4, 4);
  }

  // Element `i` of each word, widened; a word holds 4 / size_of(T) of them.
  template <Dtype T>
  static F element(Words x, int i) {
    return each([&](int lane) {
      if constexpr (T == Dtype::bf16)
        return std::bit_cast<float>(i == 0 ? x.lane[lane] << 16 : x.lane[lane] & 0xffff0000u);
      else
        return load_element(T, &x.lane[lane], i);
    });
  }
};

}  // namespace quire::simd
