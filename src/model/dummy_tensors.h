// Tensors without a file: a model of a given shape whose numbers mean nothing, for benchmarks (--load-format dummy).
//
// All matrices of a type are the beginning of one stretch of small random numbers, all vectors of one stretch of ones,
// all scales of F8_E4M3 of one stretch of equal ones, so a model of any size takes no more of the host's memory than
// its largest matrix of each type.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/file_tensor.h"

namespace quire::model {

class DummyTensors {
 public:
  // Without its numbers. F32 is for scales.
  const FileTensor* make(std::string_view name, const std::vector<int64_t>& dims, BlockType type = BlockType::bf16);
  void fill();  // gives all of them theirs

 private:
  std::deque<FileTensor> tensors_;
  std::map<BlockType, Buffer> matrices_;
  Buffer vectors_;
};

}  // namespace quire::model
