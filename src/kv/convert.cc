#include "kv/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace quire::kv {
namespace {

// Narrowing works on the bits of the magnitude. Adding half of the last kept place less one, plus that place's
// own bit, rounds to nearest even when the rest is cut off, and a carry moves into the exponent as it should.
constexpr uint32_t round_to_even(uint32_t bits, int dropped) {
  return bits + ((1u << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
}

constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kInfinity = 0x7f800000u;

// a < b ? yes : no, for a and b below 2^31. Written with a mask: with ?: g++ moves the addition in subnormal_bits,
// which may trap, into a branch, and a loop with branches is not vectorised. The mask is the sign of a - b spread over
// the word, because plain x86-64 vectors cannot compare unsigned numbers.
constexpr uint32_t if_less(uint32_t a, uint32_t b, uint32_t yes, uint32_t no) {
  const auto mask = static_cast<uint32_t>(static_cast<int32_t>(a - b) >> 31);
  return no ^ ((yes ^ no) & mask);
}

inline uint16_t bf16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = round_to_even(bits, 16) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>(if_less(kInfinity, bits & ~kSign, quiet_nan, rounded));
}

// Below the narrow type's least normal number its places are fixed, so adding a power of two whose last place
// is the same makes the processor round there, and the difference of the bits is the narrow number.
inline uint32_t subnormal_bits(uint32_t magnitude, float same_last_place) {
  return std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + same_last_place) -
         std::bit_cast<uint32_t>(same_last_place);
}

inline uint16_t f16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & ~kSign;
  const uint32_t normal = (round_to_even(magnitude, 13) - (112u << 23)) >> 13;
  const uint32_t subnormal = subnormal_bits(magnitude, 0.5f);
  uint32_t result = if_less(magnitude, 0x38800000u, subnormal, normal);  // 2^-14
  result = if_less(magnitude, 0x477ff000u, result, 0x7c00u);             // 65520 rounds to infinity
  result = if_less(kInfinity, magnitude, 0x7e00u | ((magnitude >> 13) & 0x3ff), result);
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | result);
}

inline uint8_t f8e4m3_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & ~kSign;
  const uint32_t normal = (round_to_even(magnitude, 20) - (120u << 23)) >> 20;
  const uint32_t subnormal = subnormal_bits(magnitude, 16384.0f);
  uint32_t result = if_less(magnitude, 0x3c800000u, subnormal, normal);  // 2^-6
  result = if_less(magnitude, 0x43e00000u, result, 0x7eu);               // 448 and above
  result = if_less(kInfinity, magnitude, 0x7fu, result);
  return static_cast<uint8_t>((bits >> 24 & 0x80) | result);
}

void narrow(const float* source, Dtype to, std::byte* target, int64_t count, float scale) {
  switch (to) {
    case Dtype::f32: {
      std::memcpy(target, source, count * sizeof(float));
      return;
    }
    case Dtype::bf16: {
      auto* out = reinterpret_cast<uint16_t*>(target);
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_bits(source[i]);
      return;
    }
    case Dtype::f16: {
      auto* out = reinterpret_cast<uint16_t*>(target);
      for (int64_t i = 0; i < count; ++i) out[i] = f16_bits(source[i]);
      return;
    }
    case Dtype::f8e4m3: {
      auto* out = reinterpret_cast<uint8_t*>(target);
      for (int64_t i = 0; i < count; ++i) out[i] = f8e4m3_bits(source[i] / scale);
      return;
    }
  }
}

void widen(Dtype from, const std::byte* source, float* target, int64_t count) {
  if (from == Dtype::bf16) {
    auto* in = reinterpret_cast<const uint16_t*>(source);
    for (int64_t i = 0; i < count; ++i) target[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
    return;
  }
  for (int64_t i = 0; i < count; ++i) target[i] = load_element(from, source, i);
}

}  // namespace

void convert_elements(Dtype from, const std::byte* source, Dtype to, std::byte* target, int64_t count, float scale) {
  if (from == to && scale == 1) {
    std::memcpy(target, source, count * size_of(to));
    return;
  }
  if (from == Dtype::f32) {
    narrow(reinterpret_cast<const float*>(source), to, target, count, scale);
    return;
  }
  if (to == Dtype::f32) {
    widen(from, source, reinterpret_cast<float*>(target), count);
    return;
  }
  constexpr int64_t kBlock = 256;
  float wide[kBlock];
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t block = std::min(kBlock, count - done);
    widen(from, source + done * size_of(from), wide, block);
    narrow(wide, to, target + done * size_of(to), block, scale);
  }
}

}  // namespace quire::kv
