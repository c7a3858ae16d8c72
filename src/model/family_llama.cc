// Llama, and Mistral, which adds a window. Converters put the rotated pairs of both side by side in GGUF files, and may
// call both llama.
#include "model/family.h"

namespace quire::model {
namespace {

void read_llama(const Keys& keys, ModelConfig& config) {
  read_dense(keys, config);
  if (!keys.gguf()) return;
  config.ropes.front().adjacent_pairs = true;
  set_window(config, gguf_window(keys), in_every_layer);
}

void read_mistral(const Keys& keys, ModelConfig& config) {
  read_llama(keys, config);
  if (keys.gguf() || keys.is_null("sliding_window")) return;
  const int32_t window = keys.count_or({"sliding_window"}, 4096, 1, kMostContext) - 1;  // the row itself is one of them
  set_window(config, window, in_every_layer);
}

}  // namespace

extern const Family kLlama = {"llama", "LlamaForCausalLM", read_llama};
extern const Family kMistral = {"mistral", "MistralForCausalLM", read_mistral};

}  // namespace quire::model
