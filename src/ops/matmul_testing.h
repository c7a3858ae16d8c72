// Weights, activations and outputs for the tests of products: random, with the extremes of every type among them.
#pragma once
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/blocks.h"
#include "base/exec.h"
#include "base/types.h"
#include "ops/matmul.h"
#include "ops/testing_machines.h"

namespace quire::ops::testing {

inline constexpr BlockType kQuantised[] = {BlockType::q8_0, BlockType::q4_0, BlockType::q4_1, BlockType::q5_0,
                                           BlockType::q5_1, BlockType::q4_k, BlockType::q5_k, BlockType::q6_k};
inline constexpr BlockType kDense[] = {BlockType::f32, BlockType::f16, BlockType::bf16};

inline bool quantised(BlockType type) { return shape_of(type).elements > 1; }
// The least number of inputs that the type can have, above 1.
inline int64_t least_inputs(BlockType type) { return quantised(type) ? shape_of(type).elements : 7; }

inline Exec& team() {
  static Exec exec({.threads = 2});
  return exec;
}

// Bytes of a matrix as a file would hold it.
struct Weights {
  Weights(BlockType of, int64_t rows, int64_t columns, uint32_t seed)
      : type(of), outputs(rows), inputs(columns), bytes(static_cast<size_t>(bytes_of(of, rows * columns))) {
    std::mt19937 random(seed);
    const auto block = static_cast<size_t>(shape_of(type).bytes);
    for (size_t at = 0; at < bytes.size(); at += block)
      quantised(type) ? fill_block(&bytes[at], block, random) : fill_element(&bytes[at], random);
  }
  WeightView view() const {
    return {type, bytes.data(), outputs, inputs, {scales.data(), block_outputs, block_inputs}};
  }
  std::vector<float> values() const {
    std::vector<float> result(static_cast<size_t>(outputs * inputs));
    for (int64_t output = 0; output < outputs; ++output)
      read_weights(view(), output, 0, std::span(result).subspan(output * inputs, inputs));
    return result;
  }

  BlockType type;
  int64_t outputs, inputs;
  std::vector<std::byte> bytes;
  std::vector<float> scales;  // of F8_E4M3
  int64_t block_outputs = 0, block_inputs = 0;

 private:
  // Some blocks have the greatest or the least number everywhere; of the scales some are tiny, large or negative.
  void fill_block(std::byte* block, size_t size, std::mt19937& random) const {
    const uint32_t kind = random() % 8;
    for (size_t i = 0; i < size; ++i)
      block[i] = static_cast<std::byte>(kind == 0 ? 0xff : kind == 1 ? 0x80 : kind == 2 ? 0x00 : random());
    const bool at_end = type == BlockType::q6_k,
               two = !at_end && type != BlockType::q8_0 && type != BlockType::q4_0 && type != BlockType::q5_0;
    put_scale(block + (at_end ? 208 : 0), random);
    if (two) put_scale(block + 2, random);
  }
  static void put_scale(std::byte* at, std::mt19937& random) {
    constexpr float kScales[] = {0.01f, 0.02f, -0.015f, 0.5f, -3.0f, 6e-8f, 3e-6f, 1000.0f, 0.0f};
    const f16 bits = to_f16(kScales[random() % std::size(kScales)] * (1.0f + static_cast<float>(random() % 64) / 64));
    std::memcpy(at, &bits, sizeof(bits));
  }
  void fill_element(std::byte* at, std::mt19937& random) const {
    const float x = std::normal_distribution<float>()(random);
    if (type == BlockType::f8_e4m3) *at = std::byte{to_f8e4m3(random() % 16 ? x : x / 64).bits};  // some subnormal
    if (type == BlockType::f32) std::memcpy(at, &x, 4);
    const uint16_t bits = type == BlockType::f16 ? to_f16(x).bits : to_bf16(x).bits;
    if (type == BlockType::f16 || type == BlockType::bf16) std::memcpy(at, &bits, 2);
  }
};

// With a scale of few bits for each block, so that the numbers are exact in bf16.
inline Weights fp8_weights(int64_t outputs, int64_t inputs, uint32_t seed, int64_t block_outputs,
                           int64_t block_inputs) {
  Weights weights(BlockType::f8_e4m3, outputs, inputs, seed);
  weights.block_outputs = block_outputs;
  weights.block_inputs = block_inputs;
  const int64_t across = (inputs + block_inputs - 1) / block_inputs;
  std::mt19937 random(seed + 1);
  constexpr float kScales[] = {0.5f, 0.75f, 1.25f, 3.0f, 0.0625f, 0x1p-9f, 11.0f};
  for (int64_t i = 0; i < (outputs + block_outputs - 1) / block_outputs * across; ++i)
    weights.scales.push_back(kScales[random() % std::size(kScales)]);
  return weights;
}

// Rows in both forms, independent of each other; q8 as its definition in activations.h allows, -127 to 127.
struct RandomActivations {
  RandomActivations(int64_t count, int64_t length, uint32_t seed)
      : rows(count), dim(length), q_stride((length + 63) / 64 * 64) {
    std::mt19937 random(seed);
    f32.resize(static_cast<size_t>(rows * dim));
    for (float& x : f32) x = std::normal_distribution<float>()(random);
    q.resize(static_cast<size_t>(rows * q_stride + 64));
    scale.resize(static_cast<size_t>(rows * (dim / 32)));
    sums.resize(static_cast<size_t>(rows * (dim / 16)));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t b = 0; b < dim / 32; ++b) fill_block(r, b, random);
  }
  ActivationRows view(Forms forms) {
    return {forms, rows, dim, f32.data(), nullptr, q_data(), q_stride, scale.data(), sums.data()};
  }
  int8_t* q_data() { return reinterpret_cast<int8_t*>((reinterpret_cast<uintptr_t>(q.data()) + 63) / 64 * 64); }

  int64_t rows, dim, q_stride;
  Array<float> f32;
  Array<int8_t> q;
  Array<float> scale;
  Array<int32_t> sums;

 private:
  void fill_block(int64_t r, int64_t b, std::mt19937& random) {
    constexpr float kScales[] = {0.01f, 0.3f, 1e-12f, 1e6f, 0.0f};
    const uint32_t kind = random() % 8;
    int32_t* own_sums = &sums[static_cast<size_t>(r * (dim / 16) + 2 * b)];
    for (int64_t i = 0; i < 32; ++i) {
      const int value = kind == 0 ? 127 : kind == 1 ? -127 : static_cast<int>(random() % 255) - 127;
      q_data()[r * q_stride + 32 * b + i] = static_cast<int8_t>(value);
      own_sums[i / 16] += value;
    }
    scale[static_cast<size_t>(r * (dim / 32) + b)] = kScales[random() % std::size(kScales)];
  }
};

// An output with room around every row, to show what was written.
struct Output {
  static constexpr int64_t kRoom = 5;
  static constexpr float kUntouched = 777.0f;
  Output(int64_t height, int64_t width)
      : rows(height), columns(width), data(static_cast<size_t>(height * (width + kRoom)), kUntouched) {}
  Rows<float> view() { return {data.data(), rows, columns, columns + kRoom}; }
  bool same_bits(const Output& other) const {
    return std::memcmp(data.data(), other.data.data(), data.size() * sizeof(float)) == 0;
  }
  int64_t rows, columns;
  Array<float> data;
};

}  // namespace quire::ops::testing
