// One element from float to a narrow type and back, on its bits, without calls or branches: loops of them are
// vectorised by compilers, and a GPU computes the same.
#pragma once
#include <bit>
#include <cstdint>

namespace quire::kv {

// Narrowing works on the bits of the magnitude. Adding half of the last kept place less one, plus that place's
// own bit, rounds to nearest even when the rest is cut off, and a carry moves into the exponent as it should.
constexpr uint32_t round_to_even(uint32_t bits, int dropped) {
  return bits + ((1u << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
}

inline constexpr uint32_t kSign = 0x80000000u;
inline constexpr uint32_t kInfinity = 0x7f800000u;

// a < b ? yes : no, for a and b below 2^31. Written with a mask: with ?: g++ moves the addition in subnormal_bits,
// which may trap, into a branch, and a loop with branches is not vectorised. The mask is the sign of a - b spread over
// the word, because plain x86-64 vectors cannot compare unsigned numbers.
constexpr uint32_t if_less(uint32_t a, uint32_t b, uint32_t yes, uint32_t no) {
  const auto mask = static_cast<uint32_t>(static_cast<int32_t>(a - b) >> 31);
  return no ^ ((yes ^ no) & mask);
}

constexpr uint16_t bf16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = round_to_even(bits, 16) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>(if_less(kInfinity, bits & ~kSign, quiet_nan, rounded));
}

// Below the narrow type's least normal number its places are fixed, so adding a power of two whose last place
// is the same makes the processor round there, and the difference of the bits is the narrow number.
constexpr uint32_t subnormal_bits(uint32_t magnitude, float same_last_place) {
  return std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + same_last_place) -
         std::bit_cast<uint32_t>(same_last_place);
}

constexpr uint16_t f16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & ~kSign;
  const uint32_t normal = (round_to_even(magnitude, 13) - (112u << 23)) >> 13;
  const uint32_t subnormal = subnormal_bits(magnitude, 0.5f);
  uint32_t result = if_less(magnitude, 0x38800000u, subnormal, normal);  // 2^-14
  result = if_less(magnitude, 0x477ff000u, result, 0x7c00u);             // 65520 rounds to infinity
  result = if_less(kInfinity, magnitude, 0x7e00u | ((magnitude >> 13) & 0x3ff), result);
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | result);
}

constexpr uint8_t f8e4m3_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & ~kSign;
  const uint32_t normal = (round_to_even(magnitude, 20) - (120u << 23)) >> 20;
  const uint32_t subnormal = subnormal_bits(magnitude, 16384.0f);
  uint32_t result = if_less(magnitude, 0x3c800000u, subnormal, normal);  // 2^-6
  result = if_less(magnitude, 0x43e00000u, result, 0x7eu);               // 448 and above
  result = if_less(kInfinity, magnitude, 0x7fu, result);
  return static_cast<uint8_t>((bits >> 24 & 0x80) | result);
}

// Widening moves the bits to where a float has them; then the exponent lacks the difference of the two biases, which a
// product with a power of two adds, exactly, subnormal numbers included.
constexpr float float_of_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

constexpr float float_of_f16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
  return std::bit_cast<float>(sign | if_less(magnitude, 0x7c00u, finite, kInfinity | (magnitude & 0x3ff) << 13));
}

constexpr float float_of_f8e4m3(uint8_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 20) * 0x1p120f);
  return std::bit_cast<float>(sign | if_less(magnitude, 0x7fu, finite, 0x7fc00000u));
}

}  // namespace quire::kv
