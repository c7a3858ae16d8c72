// What a model file says about the model's shape, whatever kind of file it is.
//
// Errors   CheckError, one line that names the file, the key and the value: an architecture quire does not know, a
//          missing key, a count out of range, shapes that contradict each other.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/gguf.h"
#include "ops/rope.h"

namespace quire::model {

struct ModelConfig {
  std::string architecture;  // llama, mistral, qwen2, qwen3, smollm3
  std::string name;          // for people
  int32_t layers;
  int32_t width;  // of the residual stream
  int32_t ffn_width;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t vocabulary;
  int32_t context;  // most tokens of a text that it is made for
  float norm_eps;
  int32_t rotary;  // rotated dims of a head
  double rope_theta;
  ops::RopeScaling rope_scaling;
  bool adjacent_pairs;          // llama's GGUF files; else halves
  std::vector<bool> rotates;    // [layers] false: a layer without rope (SmolLM3)
  int32_t window = -1;          // Mistral's sliding window: tokens before its own that a row sees; -1: all
  std::vector<bool> windowed;   // [layers]
  bool qkv_bias = false;        // Qwen2, read from the tensors that exist
  bool qk_norm = false;         // Qwen3
  bool tied_embedding = false;  // the output matrix is the embedding
};
std::string to_string(const ModelConfig& config);  // one line for people

ModelConfig config_from_gguf(const GgufFile& file);
ModelConfig config_from_folder(const std::string& folder);  // config.json

// The bounds of every count, for both readers: what is larger is a broken file, not a model.
inline constexpr int32_t kMostLayers = 1000;
inline constexpr int32_t kMostWidth = 1 << 17;  // of the residual stream, and of all heads together
inline constexpr int32_t kMostFfnWidth = 1 << 20;
inline constexpr int32_t kMostHeads = 1024;
inline constexpr int32_t kMostHeadDim = 256;
inline constexpr int32_t kMostVocabulary = 1 << 20;
inline constexpr int32_t kMostContext = 1 << 26;

void check_architecture(std::string_view name, std::string_view file);  // refuses the unknown, listing the known
// The context that a file means which says `context` and scales positions so. Yarn stretches the original context by
// its factor; some files give the stretched length, others (Qwen's recipe) keep the short one: the longer of the two is
// meant.
int32_t scaled_context(int32_t context, const ops::RopeScaling& scaling, std::string_view file);
// How the counts must fit together, whatever file they come from.
void check_config(const ModelConfig& config, std::string_view file);

}  // namespace quire::model
