// One file in the safetensors format: the length of a JSON header, the header, and the tensors' bytes back to back.
//
// Errors   CheckError that says what is wrong with the file; the caller adds its path.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "base/file_tensor.h"

namespace quire {

std::vector<FileTensor> read_safetensors(std::span<const std::byte> file);  // in the order of their bytes

}  // namespace quire
