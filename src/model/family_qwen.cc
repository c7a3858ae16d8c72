// Qwen2, with biases of queries, keys and values, and Qwen3, with norms of queries and keys by head.
#include "model/family.h"

namespace quire::model {
namespace {

bool from_the_last_layers(const Keys& keys, const ModelConfig&, int32_t layer) {
  return layer >= keys.count_or({"max_window_layers"}, 28, 0, kMostContext);
}

void read_qwen2(const Keys& keys, ModelConfig& config) {
  read_dense(keys, config);
  read_listed_windows(keys, config, from_the_last_layers);
  if (keys.gguf()) return;  // which has the tensors or has not
  for (LayerSpec& layer : config.layers) layer.attention.qkv_bias = true;
}

void read_qwen3(const Keys& keys, ModelConfig& config) {
  read_dense(keys, config, {.head_dim = 128});
  read_listed_windows(keys, config, from_the_last_layers);
  for (LayerSpec& layer : config.layers) layer.attention.qk_norm = QkNorm::per_head;
}

}  // namespace

extern const Family kQwen2 = {"qwen2", "Qwen2ForCausalLM", read_qwen2};
extern const Family kQwen3 = {"qwen3", "Qwen3ForCausalLM", read_qwen3};

}  // namespace quire::model
