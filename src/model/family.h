// Families of models: each turns the keys and tensors of its files into specs (config.h). A dense family is one file
// family_NAME.cc, and its name in family.cc and in CMakeLists.txt; what it shares with llama it takes from read_dense,
// and changes what is different.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "model/config.h"
#include "model/keys.h"

namespace quire::model {

struct Family {
  std::string_view architecture;  // general.architecture, model_type
  std::string_view class_name;    // in Hugging Face's "architectures"
  // Fills everything but the architecture and the name. The keys of GGUF files have the architecture as prefix.
  void (*read)(const Keys& keys, ModelConfig& config);
};

// Refuses the unknown, listing the known.
const Family& family_of(std::string_view architecture, std::string_view file);

// What a file means that does not say, and what the family computes beyond the usual.
struct DenseDefaults {
  bool tied = false;     // folders; GGUF files are tied when they have no output matrix
  int32_t head_dim = 0;  // 0: width / heads
  double theta = 1e4;
  std::span<const std::string_view> computed = {};  // GGUF keys that change the arithmetic, read by the family itself
};
// Llama's layers: all the same, RMS norms before both halves, every head rotated by halves, no window.
void read_dense(const Keys& keys, ModelConfig& config, const DenseDefaults& defaults = {});

// Windows of `window` tokens before a row's own, in the layers that sees_window(layer) names; -1: none.
template <class InLayer>
void set_window(ModelConfig& config, int32_t window, const InLayer& sees_window) {
  for (int32_t layer = 0; layer < config.layer_count(); ++layer)
    if (sees_window(layer)) config.layers[layer].attention.window = window;
}
inline bool in_every_layer(int32_t) { return true; }
// Of a GGUF file, where it is that of every layer; -1: none. The key counts the row itself.
int32_t gguf_window(const Keys& keys);
// Of a folder with use_sliding_window: layer_types lists the layers, or else the rule names them.
using LayerRule = bool (*)(const Keys& keys, const ModelConfig& config, int32_t layer);
void read_listed_windows(const Keys& keys, ModelConfig& config, LayerRule rule);

}  // namespace quire::model
