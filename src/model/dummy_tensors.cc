#include "model/dummy_tensors.h"

#include <algorithm>
#include <cstring>

#include "base/types.h"

namespace quire::model {
namespace {

size_t bytes_of_dims(const std::vector<int64_t>& dims) {
  size_t bytes = sizeof(bf16);
  for (const int64_t dim : dims) bytes *= static_cast<size_t>(dim);
  return bytes;
}

// Around zero, up to 1/32: products over thousands of inputs stay of the size of what goes in.
void fill_random(const Buffer& memory) {
  auto* const numbers = reinterpret_cast<uint16_t*>(memory.data());
  constexpr uint16_t kOneOver32 = 0x3d00, kSign = 0x8000, kFraction = 0x7f, kExponents = 0x0180;
  uint64_t state = 1;
  for (size_t i = 0; i < memory.size() / sizeof(uint16_t); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<uint16_t>(state >> 40);
    numbers[i] = static_cast<uint16_t>((kOneOver32 - (bits & kExponents)) | (bits & kSign) | (bits & kFraction));
  }
}

}  // namespace

const FileTensor* DummyTensors::make(std::string_view name, const std::vector<int64_t>& dims) {
  tensors_.push_back({.name = std::string(name), .type = BlockType::bf16, .dims = dims, .data = {}});
  return &tensors_.back();
}

void DummyTensors::fill() {
  size_t matrices = 0, vectors = 0;
  for (const FileTensor& tensor : tensors_) {
    size_t& most = tensor.dims.size() > 1 ? matrices : vectors;
    most = std::max(most, bytes_of_dims(tensor.dims));
  }
  matrices_ = Buffer(matrices);
  vectors_ = Buffer(vectors);
  fill_random(matrices_);
  std::fill_n(reinterpret_cast<uint16_t*>(vectors_.data()), vectors / sizeof(uint16_t), to_bf16(1).bits);
  for (FileTensor& tensor : tensors_)
    tensor.data = (tensor.dims.size() > 1 ? matrices_ : vectors_).bytes().first(bytes_of_dims(tensor.dims));
}

}  // namespace quire::model
