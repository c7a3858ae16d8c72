#include "model/dummy_tensors.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/types.h"

namespace quire::model {
namespace {

size_t bytes_of_tensor(const FileTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t dim : tensor.dims) elements *= dim;
  return static_cast<size_t>(bytes_of(tensor.type, elements));
}

class RandomBits {
 public:
  uint16_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint16_t>(state_ >> 40);
  }

 private:
  uint64_t state_ = 1;
};

// Around zero, up to 1/32: products over thousands of inputs stay of the size of what goes in.
void fill_bf16(const Buffer& memory) {
  auto* const numbers = reinterpret_cast<uint16_t*>(memory.data());
  constexpr uint16_t kOneOver32 = 0x3d00, kSign = 0x8000, kFraction = 0x7f, kExponents = 0x0180;
  RandomBits random;
  for (size_t i = 0; i < memory.size() / sizeof(uint16_t); ++i) {
    const uint16_t bits = random.next();
    numbers[i] = static_cast<uint16_t>((kOneOver32 - (bits & kExponents)) | (bits & kSign) | (bits & kFraction));
  }
}

// Up to 2, times a scale of 1/64.
constexpr float kFp8Scale = 1.0f / 64;
void fill_f8(const Buffer& memory) {
  RandomBits random;
  for (std::byte& number : memory.bytes()) number = static_cast<std::byte>((random.next() & 0x9f) | 0x20);
}

// Where a block of random bytes has its scale and minimum, and what they are for numbers up to 1/32.
struct BlockScales {
  int32_t scale_at;
  float scale;
  int32_t minimum_at;  // -1: none
  float minimum;
};
BlockScales block_scales(BlockType type) {
  constexpr float kMost = 1.0f / 32;
  switch (type) {
    case BlockType::q8_0:
      return {0, kMost / 128, -1, 0};
    case BlockType::q4_0:
      return {0, kMost / 8, -1, 0};
    case BlockType::q5_0:
      return {0, kMost / 16, -1, 0};
    case BlockType::q4_1:
      return {0, kMost / 8, 2, -kMost};
    case BlockType::q5_1:
      return {0, kMost / 16, 2, -kMost};
    case BlockType::q4_k:
      return {0, kMost / 8 / 32, 2, kMost / 32};
    case BlockType::q5_k:
      return {0, kMost / 16 / 32, 2, kMost / 32};
    case BlockType::q6_k:
      return {208, kMost / 32 / 64, -1, 0};
    default:
      throw CheckError(cat("no dummy weights of ", type));
  }
}

void fill_blocks(const Buffer& memory, BlockType type) {
  const BlockScales scales = block_scales(type);
  const auto block_bytes = static_cast<size_t>(shape_of(type).bytes);
  const uint16_t scale = to_f16(scales.scale).bits, minimum = to_f16(scales.minimum).bits;
  RandomBits random;
  for (std::byte& byte : memory.bytes()) byte = static_cast<std::byte>(random.next());
  for (size_t at = 0; at < memory.size(); at += block_bytes) {
    std::memcpy(memory.data() + at + scales.scale_at, &scale, sizeof(scale));
    if (scales.minimum_at >= 0) std::memcpy(memory.data() + at + scales.minimum_at, &minimum, sizeof(minimum));
  }
}

void fill_stretch(const Buffer& memory, BlockType type) {
  if (type == BlockType::bf16) return fill_bf16(memory);
  if (type == BlockType::f8_e4m3) return fill_f8(memory);
  if (type == BlockType::f32)
    return std::fill_n(reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float), kFp8Scale), void();
  fill_blocks(memory, type);
}

}  // namespace

const FileTensor* DummyTensors::make(std::string_view name, const std::vector<int64_t>& dims, BlockType type) {
  tensors_.push_back({.name = std::string(name), .type = type, .dims = dims, .data = {}});
  return &tensors_.back();
}

void DummyTensors::fill() {
  std::map<BlockType, size_t> most;
  size_t longest = 0;
  for (const FileTensor& tensor : tensors_) {
    size_t& bytes = tensor.dims.size() > 1 ? most[tensor.type] : longest;
    bytes = std::max(bytes, bytes_of_tensor(tensor));
  }
  for (const auto& [type, bytes] : most) {
    matrices_[type] = Buffer(bytes);
    fill_stretch(matrices_[type], type);
  }
  vectors_ = Buffer(longest);
  std::fill_n(reinterpret_cast<uint16_t*>(vectors_.data()), longest / sizeof(uint16_t), to_bf16(1).bits);
  for (FileTensor& tensor : tensors_)
    tensor.data = (tensor.dims.size() > 1 ? matrices_[tensor.type] : vectors_).bytes().first(bytes_of_tensor(tensor));
}

}  // namespace quire::model
