#include "base/types.h"

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

constexpr uint32_t kSign = 0x8000'0000;
constexpr uint32_t kInfinity = 0x7f80'0000;

// The magnitude of a finite float in a format with the given mantissa and smallest normal exponent, rounded to
// nearest even. Denormals of the target come out of the same shift as normals. There is no upper limit: the
// caller compares with its largest value, which also catches a rounding that carries past it.
uint32_t round_magnitude(uint32_t magnitude, int mantissa_bits, int min_exponent) {
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const uint32_t hidden = magnitude >> 23 ? 1u << 23 : 0;
  const uint32_t significand = (magnitude & 0x7f'ffff) | hidden;
  const int shift = 23 - mantissa_bits + std::max(0, min_exponent - exponent);
  if (shift > 24) return 0;  // less than half of the smallest denormal
  const uint32_t odd = (significand >> shift) & 1;
  const uint32_t rounded = (significand + (1u << (shift - 1)) - 1 + odd) >> shift;
  return (static_cast<uint32_t>(std::max(0, exponent - min_exponent)) << mantissa_bits) + rounded;
}

// The inverse: exact, because every value of a narrow format is a normal float.
float widen_magnitude(uint32_t magnitude, int mantissa_bits, int min_exponent) {
  const uint32_t exponent_field = magnitude >> mantissa_bits;
  const uint32_t fraction = magnitude & ((1u << mantissa_bits) - 1);
  const auto power_of_two = [](int exponent) {
    return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  };
  if (exponent_field == 0) return static_cast<float>(fraction) * power_of_two(min_exponent - mantissa_bits);
  const auto significand = static_cast<float>(fraction | (1u << mantissa_bits));
  return significand * power_of_two(static_cast<int>(exponent_field) - 1 + min_exponent - mantissa_bits);
}

float with_sign(float magnitude, bool negative) { return negative ? -magnitude : magnitude; }

constexpr int kF16Mantissa = 10, kF16MinExponent = -14;
constexpr int kF8Mantissa = 3, kF8MinExponent = -6;
constexpr uint32_t kF16Infinity = 0x7c00;
constexpr uint32_t kF8Largest = 0x7e, kF8Nan = 0x7f;

template <class T>
T load_as(const void* array, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void store_as(void* array, int64_t index, T value) {
  std::memcpy(static_cast<char*>(array) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

float to_float(f16 x) {
  const uint32_t magnitude = x.bits & 0x7fff;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  if (magnitude >= kF16Infinity) return std::bit_cast<float>(sign | kInfinity | ((magnitude & 0x3ff) << 13));
  return with_sign(widen_magnitude(magnitude, kF16Mantissa, kF16MinExponent), sign != 0);
}

float to_float(f8e4m3 x) {
  const uint32_t magnitude = x.bits & 0x7f;
  const bool negative = (x.bits & 0x80) != 0;
  if (magnitude == kF8Nan) return std::bit_cast<float>((negative ? kSign : 0) | kInfinity | 0x40'0000);
  return with_sign(widen_magnitude(magnitude, kF8Mantissa, kF8MinExponent), negative);
}

bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  // A NaN is made quiet rather than rounded: rounding could carry its payload away and leave an infinity.
  if ((bits & ~kSign) > kInfinity) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

f16 to_f16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits & kSign) >> 16;
  const uint32_t magnitude = bits & ~kSign;
  uint32_t narrow = kF16Infinity;
  if (magnitude > kInfinity)
    narrow = kF16Infinity | 0x200 | ((magnitude >> 13) & 0x1ff);
  else if (magnitude < kInfinity)
    narrow = std::min(round_magnitude(magnitude, kF16Mantissa, kF16MinExponent), kF16Infinity);
  return {static_cast<uint16_t>(sign | narrow)};
}

f8e4m3 to_f8e4m3(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits & kSign) >> 24;
  const uint32_t magnitude = bits & ~kSign;
  uint32_t narrow = kF8Largest;
  if (magnitude > kInfinity)
    narrow = kF8Nan;
  else if (magnitude < kInfinity)
    narrow = std::min(round_magnitude(magnitude, kF8Mantissa, kF8MinExponent), kF8Largest);
  return {static_cast<uint8_t>(sign | narrow)};
}

float load_element(Dtype type, const void* array, int64_t index) {
  switch (type) {
    case Dtype::f32:
      return load_as<float>(array, index);
    case Dtype::bf16:
      return to_float(load_as<bf16>(array, index));
    case Dtype::f16:
      return to_float(load_as<f16>(array, index));
    case Dtype::f8e4m3:
      return to_float(load_as<f8e4m3>(array, index));
  }
  throw CheckError(cat("element type ", static_cast<int>(type), " is not one of f32, bf16, f16, f8e4m3"));
}

void store_element(Dtype type, void* array, int64_t index, float value) {
  switch (type) {
    case Dtype::f32:
      return store_as(array, index, value);
    case Dtype::bf16:
      return store_as(array, index, to_bf16(value));
    case Dtype::f16:
      return store_as(array, index, to_f16(value));
    case Dtype::f8e4m3:
      return store_as(array, index, to_f8e4m3(value));
  }
  throw CheckError(cat("element type ", static_cast<int>(type), " is not one of f32, bf16, f16, f8e4m3"));
}

}  // namespace quire
