// Writes GGUF files for tests: metadata and tensors in the order given, each of which may be changed or left out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/blocks.h"

namespace quire::model::testing {

class GgufWriter {
 public:
  using Value = std::variant<uint32_t, float, std::string, bool>;

  void set(const std::string& key, Value value);  // adds it, or changes what was set before
  void unset(const std::string& key);
  // dims outermost first; replaces a tensor of that name
  void tensor(const std::string& name, BlockType type, std::vector<int64_t> dims, std::vector<std::byte> data);
  void remove_tensor(const std::string& name);

  void write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    BlockType type;
    std::vector<int64_t> dims;
    std::vector<std::byte> data;
  };
  std::vector<std::pair<std::string, Value>> metadata_;
  std::vector<Tensor> tensors_;
};

// Numbers around zero of about the given spread. Of quantised types every bit of a block is random but for the scales.
std::vector<std::byte> random_weights(BlockType type, int64_t elements, float spread, std::mt19937_64& random);

}  // namespace quire::model::testing
