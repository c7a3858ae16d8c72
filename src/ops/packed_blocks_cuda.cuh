// Quantised weights out of packed_blocks.h's layout, as the lanes of a warp have them: the words that tensor cores
// multiply, and the scales.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "base/tensor_core.cuh"
#include "ops/by_row_cuda.cuh"
#include "ops/packed_blocks.h"

namespace quire::ops::cuda {

inline __device__ uint4 load_16(const std::byte* shared) { return *reinterpret_cast<const uint4*>(shared); }
inline __device__ uint2 load_8(const std::byte* shared) { return *reinterpret_cast<const uint2*>(shared); }
inline __device__ uint32_t load_4(const std::byte* shared) { return *reinterpret_cast<const uint32_t*>(shared); }

inline __device__ float2 floats_of(uint32_t halves) { return __half22float2(quire::cuda::bits_as<__half2>(halves)); }

// 2^23 + byte `k` of the word. Blocks have no third dimension; but a constant that the compiler knows makes it keep the
// many k in registers instead.
inline __device__ float above_two_to_23(uint32_t word, uint32_t k) {
  const uint32_t two_to_23 = 0x4affffffu + blockDim.z;
  return __uint_as_float(__byte_perm(word, two_to_23, 0x7440u | k));
}

inline __device__ uint32_t word_of(const uint4& words, int32_t i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// --- weights

// The words of four weights that the lane has of block i, times 2^kShift.
template <BlockType T>
struct Quad {
  static constexpr DeviceLayout kLayout = device_layout(T);
  static constexpr int32_t kBits = kLayout.bits;
  // Two's complement of fewer than 8 bits lies at the top of its byte.
  static constexpr int32_t kShift = kLayout.has_minimum ? 0 : 8 - kBits;

  __device__ explicit Quad(const std::byte* quad) {
    const int32_t lane = threadIdx.x % kWarp;
    if constexpr (kBits == 8) {
      const uint2 first = load_8(quad + lane * 8), second = load_8(quad + 256 + lane * 8);
      const uint2 third = load_8(quad + 512 + lane * 8), fourth = load_8(quad + 768 + lane * 8);
      low = {first.x, first.y, second.x, second.y};
      more = {third.x, third.y, fourth.x, fourth.y};
    } else {
      low = {load_4(quad + lane * 4), load_4(quad + 128 + lane * 4), load_4(quad + 256 + lane * 4),
             load_4(quad + 384 + lane * 4)};
    }
    if constexpr (kBits == 5) more.x = load_4(quad + 512 + lane * 4);
    if constexpr (kBits == 6) {
      const uint2 pairs = load_8(quad + 512 + lane * 8);
      more.x = pairs.x;
      more.y = pairs.y;
    }
  }

  // i is known when this is compiled.
  __device__ uint2 words(int32_t i) const {
    if constexpr (kBits == 8) {
      const uint4& two = i < 2 ? low : more;
      return i % 2 ? uint2{two.z, two.w} : uint2{two.x, two.y};
    } else {
      return unpacked(word_of(low, i), kBits == 6 && i >= 2 ? more.y : more.x, i);
    }
  }

  // Of block i: the word of nibbles, and the one that has what is above them.
  __device__ static uint2 unpacked(uint32_t nibbles, uint32_t above, int32_t i) {
    constexpr uint32_t kNibbles = 0x0f0f0f0fu << kShift;
    uint2 result = {nibbles << kShift & kNibbles, nibbles >> (4 - kShift) & kNibbles};
    if constexpr (kBits == 5) {
      constexpr uint32_t kBit = 0x10101010u << kShift;
      result.x |= moved(above, 2 * i, 4 + kShift) & kBit;
      result.y |= moved(above, 2 * i + 1, 4 + kShift) & kBit;
    }
    if constexpr (kBits == 6) {
      constexpr uint32_t kPair = 0x30303030u << kShift;
      result.x |= moved(above, i % 2 * 4, 4 + kShift) & kPair;
      result.y |= moved(above, i % 2 * 4 + 2, 4 + kShift) & kPair;
    }
    return result;
  }

 private:
  // Bit `from` of each byte to place `to`.
  __device__ static uint32_t moved(uint32_t word, int32_t from, int32_t to) {
    return from <= to ? word << (to - from) : word >> (from - to);
  }

  uint4 low, more;
};

// The scales and minima of a group's blocks for an output of a tile.
template <BlockType T>
struct Scales {
  static constexpr DeviceLayout kLayout = device_layout(T);
  static constexpr bool kOf256 = kLayout.quads == 2;

  __device__ explicit Scales(const std::byte* head, int32_t output = threadIdx.x % kWarp / 4) {
    if constexpr (!kOf256) {
      const uint2 scales = load_8(head + output * 8);
      words.x = scales.x;
      words.y = scales.y;
      if constexpr (kLayout.has_minimum) {
        const uint2 minima = load_8(head + 64 + output * 8);
        words.z = minima.x;
        words.w = minima.y;
      }
    } else if constexpr (T == BlockType::q6_k) {
      d = __half2float(*reinterpret_cast<const __half*>(head + output * 2));
      words = load_16(head + 16 + output * 16);
    } else {
      const float2 both = floats_of(load_4(head + output * 4));
      d = both.x;
      least = both.y;
      words = load_16(head + 32 + output * 16);
    }
  }

  // Of block `block` of the group, in Q6_K of its half; both are known when this is compiled.
  __device__ float scale(int32_t block, int32_t half) const {
    if constexpr (!kOf256) return half_of(block / 2, block % 2);
    if constexpr (T == BlockType::q6_k) {
      const uint32_t byte = block * 2 + half;
      return __fmul_rn(d, __fsub_rn(above_two_to_23(word_of(words, byte / 4), byte % 4), 8388608.0f + 128.0f));
    }
    return product(d, block / 2 * 4 + block % 2);
  }
  // To be added where blocks have 32 elements, else to be taken off.
  __device__ float minimum(int32_t block) const {
    if constexpr (!kOf256) return half_of(2 + block / 2, block % 2);
    return product(least, block / 2 * 4 + 2 + block % 2);
  }

 private:
  __device__ float half_of(int32_t word, int32_t upper) const {
    const float2 both = floats_of(word_of(words, word));
    return upper ? both.y : both.x;
  }
  // factor * byte: exact, and so are both products in the fused one.
  __device__ float product(float factor, uint32_t byte) const {
    return __fmaf_rn(factor, above_two_to_23(word_of(words, byte / 4), byte % 4), __fmul_rn(factor, -8388608.0f));
  }

  uint4 words;
  float d, least;
};

}  // namespace quire::ops::cuda
