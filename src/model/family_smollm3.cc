// SmolLM3: every fourth layer knows no positions, or those that the folder lists.
#include "base/errors_about.h"
#include "base/json_fields.h"
#include "model/family.h"

namespace quire::model {
namespace {

void read_layers_without_rope(const Keys& keys, ModelConfig& config) {
  const auto without = [&](int32_t layer) { config.layers[layer].attention.rope = -1; };
  const auto has_rope = [&](const nlohmann::json& flag, int32_t layer) {
    return errors_about(keys.path(), [&] { return to_count(flag, cat("no_rope_layers[", layer, "]"), 0, 1) == 1; });
  };
  const int32_t interval = keys.count_or({"no_rope_layer_interval"}, 4, 1, kMostLayers);
  if (keys.has({"no_rope_layers"})) {  // named after the zeros in it: 1 is a layer with positions
    const std::vector<nlohmann::json> flags = keys.by_layer("no_rope_layers", config.layer_count());
    for (int32_t layer = 0; layer < config.layer_count(); ++layer)
      if (!has_rope(flags[layer], layer)) without(layer);
  } else {
    for (int32_t layer = interval - 1; layer < config.layer_count(); layer += interval) without(layer);
  }
}

bool without_rope(const Keys&, const ModelConfig& config, int32_t layer) {
  return config.layers[layer].attention.rope < 0;
}

void read_smollm3(const Keys& keys, ModelConfig& config) {
  read_dense(keys, config, {.tied = true, .theta = 2e6});
  config.ropes.front().adjacent_pairs = keys.gguf() != nullptr;
  read_layers_without_rope(keys, config);
  read_listed_windows(keys, config, without_rope);
}

}  // namespace

extern const Family kSmolLm3 = {"smollm3", "SmolLM3ForCausalLM", read_smollm3};

}  // namespace quire::model
