// How a folder says that its matrices are quantised: config.json's quantization_config.
//
// Computed are weights of F8_E4M3 with a scale for a tensor, a channel (output) or a block, as they are written by
// DeepSeek and Qwen ("fp8"), compressed-tensors ("float-quantized") and ModelOpt ("FP8"). Activations stay as they are:
// scales for them, and for keys and values, are not used. A model without weights (--load-format dummy) may also be
// {"quant_method": "gguf", "type": "Q4_K_M"}, of the types of a GGUF file, or of one of them: "Q8_0".
//
// Errors   CheckError that names the file and what it asks for.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/blocks.h"

namespace quire::model {

struct QuantizationScheme {
  enum class Scales : uint8_t { tensor, channel, block };

  BlockType type = BlockType::f8_e4m3;
  Scales scales = Scales::tensor;                   // of F8_E4M3
  int64_t block_outputs = 128, block_inputs = 128;  // of Scales::block
  std::vector<std::string> dense;                   // modules that are not quantised, or "re:" and an expression
  bool mixed = false;                               // Q4_K_M: some matrices of some layers are Q6_K

  bool is_gguf() const { return type != BlockType::f8_e4m3; }
  // Of the matrix `name` ("model.layers.0.mlp.up_proj.weight") of a model with so many layers.
  BlockType type_of(std::string_view name, int32_t layers) const;
};

// Nothing where the folder is not quantised. `config` is the whole config.json.
std::optional<QuantizationScheme> quantization_of(const nlohmann::json& config, std::string_view path);

}  // namespace quire::model
