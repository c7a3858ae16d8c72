// One tensor of a weight file, as all file readers give it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/blocks.h"

namespace quire {

struct FileTensor {
  std::string name;
  BlockType type;
  std::vector<int64_t> dims;        // outermost first: [outputs, inputs] of a matrix; the last is contiguous, and whole
                                    // blocks; none is zero; a single number may have none
  std::span<const std::byte> data;  // inside the mapped file, dense; bytes_of(type, product of dims), any alignment
};

// The same where integers may stand too, which are no weights.
struct NamedTensor {
  std::string name;
  std::string dtype;                // F32, F16, BF16, F8_E4M3, I64, I32, U8 or BOOL, as safetensors has them
  std::vector<int64_t> dims;        // outermost first; none is zero; a single number may have none
  std::span<const std::byte> data;  // inside the mapped file, dense
};

}  // namespace quire
