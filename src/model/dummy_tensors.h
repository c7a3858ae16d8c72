// Tensors without a file: a model of a given shape whose numbers mean nothing, for benchmarks (--load-format dummy).
//
// All matrices are the beginning of one stretch of small random numbers in bf16, all vectors of one stretch of ones, so
// a model of any size takes no more of the host's memory than its largest matrix.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/file_tensor.h"

namespace quire::model {

class DummyTensors {
 public:
  const FileTensor* make(std::string_view name, const std::vector<int64_t>& dims);  // without its numbers
  void fill();                                                                      // gives all of them theirs

 private:
  std::deque<FileTensor> tensors_;
  Buffer matrices_, vectors_;
};

}  // namespace quire::model
