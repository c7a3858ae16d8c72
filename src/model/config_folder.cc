// A model's shape from the config.json of a Hugging Face folder.
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/in_quotes.h"
#include "base/mapped_file.h"
#include "base/strict_json.h"
#include "model/config.h"

namespace quire::model {
namespace {

using nlohmann::json;
using ops::RopeScaling;

constexpr size_t kMostFileBytes = size_t{16} << 20;
constexpr int kMostDepth = 16;

json parse_file(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  check(bytes.size() <= kMostFileBytes, path, ": ", bytes.size(), " bytes, more than ", kMostFileBytes);
  return errors_about(path, [&] {
    return parse_strict_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, kMostDepth);
  });
}

// One JSON object, each key read with its type and bounds. A key that is null counts as missing.
class FolderKeys {
 public:
  FolderKeys(const json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  bool is_null(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }
  const json& at(const char* key) const {
    check(has(key), path_, ": the key ", key, " is missing");
    return object_.at(key);
  }
  int32_t count(const char* key, int32_t least, int32_t most) const {
    const json& value = at(key);
    check(value.is_number_integer(), path_, ": ", key, " is not a whole number but ", value.type_name());
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(most);
    check(fits && value.get<int64_t>() >= least && value.get<int64_t>() <= most, path_, ": ", key, " = ", value.dump(),
          " is not between ", least, " and ", most);
    return value.get<int32_t>();
  }
  int32_t count_or(const char* key, int32_t otherwise, int32_t least, int32_t most) const {
    return has(key) ? count(key, least, most) : otherwise;
  }
  double number(const char* key) const {
    check(at(key).is_number(), path_, ": ", key, " is not a number but ", at(key).type_name());
    return at(key).get<double>();
  }
  double number_or(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool flag_or(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    check(at(key).is_boolean(), path_, ": ", key, " is not true or false but ", at(key).type_name());
    return at(key).get<bool>();
  }
  std::string text(const char* key) const {
    check(at(key).is_string(), path_, ": ", key, " is not a string but ", at(key).type_name());
    return at(key).get<std::string>();
  }
  std::string text_or(const char* key, const char* otherwise) const { return has(key) ? text(key) : otherwise; }
  // An array with an element for each layer; longer ones are cut, as Hugging Face's own code does.
  std::vector<json> by_layer(const char* key, int32_t layers) const {
    const json& value = at(key);
    check(value.is_array(), path_, ": ", key, " is not an array but ", value.type_name());
    check(std::ssize(value) >= layers, path_, ": ", key, " has ", value.size(), " elements for ", layers, " layers");
    return {value.begin(), value.begin() + layers};
  }
  FolderKeys object(const char* key) const {
    check(at(key).is_object(), path_, ": ", key, " is not an object but ", at(key).type_name());
    for (const auto& [name, value] : at(key).items())
      check(!value.is_object(), path_, ": ", key, ": ", in_quotes(name),
            " is an object: one for each kind of layer is not "
            "something that quire computes");
    return {at(key), cat(path_, ": ", key)};
  }

 private:
  const json& object_;
  std::string path_;
};

// What would change the arithmetic and is not computed.
void refuse_features(const FolderKeys& keys) {
  check(!keys.has("quantization_config"), keys.path(),
        ": quantization_config: of folders, only weights in F32, F16 and BF16 are computed");
  check(!keys.flag_or("mlp_bias", false), keys.path(), ": mlp_bias = true is not something that quire computes");
  const std::string activation = keys.text_or("hidden_act", "silu");
  check(activation == "silu", keys.path(), ": hidden_act = ", in_quotes(activation), ", only silu is computed");
  check(keys.number_or("partial_rotary_factor", 1) == 1, keys.path(),
        ": partial_rotary_factor: only whole heads are rotated");
}

void read_widths(const FolderKeys& keys, ModelConfig& config) {
  config.layers = keys.count("num_hidden_layers", 1, kMostLayers);
  config.width = keys.count("hidden_size", 1, kMostWidth);
  config.ffn_width = keys.count("intermediate_size", 1, kMostFfnWidth);
  config.context = keys.count("max_position_embeddings", 1, kMostContext);
  config.vocabulary = keys.count("vocab_size", 1, kMostVocabulary);
  config.norm_eps = static_cast<float>(keys.number("rms_norm_eps"));
  config.tied_embedding = keys.flag_or("tie_word_embeddings", config.architecture == "smollm3");
}

void read_heads(const FolderKeys& keys, ModelConfig& config) {
  config.heads = keys.count("num_attention_heads", 1, kMostHeads);
  config.kv_heads = keys.count_or("num_key_value_heads", config.heads, 1, kMostHeads);
  config.head_dim = config.architecture == "qwen3"
                        ? keys.count_or("head_dim", 128, 1, kMostHeadDim)
                        : keys.count_or("head_dim", config.width / config.heads, 1, kMostHeadDim);
  config.qkv_bias = config.architecture == "qwen2" || keys.flag_or("attention_bias", false);
  config.qk_norm = config.architecture == "qwen3";
}

RopeScaling::Kind kind_of(const FolderKeys& rope) {
  const std::string name = rope.text_or("rope_type", rope.text_or("type", "default").c_str());
  if (name == "default") return RopeScaling::Kind::none;
  if (name == "linear") return RopeScaling::Kind::linear;
  if (name == "llama3") return RopeScaling::Kind::llama3;
  check(name == "yarn", rope.path(), ": rope_type = ", in_quotes(name), " is not one of default, linear, llama3, yarn");
  return RopeScaling::Kind::yarn;
}

void read_yarn(const FolderKeys& rope, RopeScaling& scaling) {
  scaling.beta_fast = rope.number_or("beta_fast", scaling.beta_fast);
  scaling.beta_slow = rope.number_or("beta_slow", scaling.beta_slow);
  scaling.attention_factor = rope.number_or("attention_factor", 0);
  check(rope.flag_or("truncate", true), rope.path(), ": truncate = false is not something that quire computes");
  check(!rope.has("mscale") && !rope.has("mscale_all_dim"), rope.path(),
        ": mscale is not something that quire computes");
}

RopeScaling read_scaling(const FolderKeys& keys, const FolderKeys& rope, int32_t context) {
  RopeScaling scaling;
  scaling.kind = kind_of(rope);
  if (scaling.kind == RopeScaling::Kind::none) return {};
  scaling.factor = rope.number("factor");
  if (scaling.kind == RopeScaling::Kind::linear) return scaling;
  scaling.original_context =
      rope.number_or("original_max_position_embeddings", keys.number_or("original_max_position_embeddings", context));
  if (scaling.kind == RopeScaling::Kind::llama3) {
    scaling.low_frequency_factor = rope.number("low_freq_factor");
    scaling.high_frequency_factor = rope.number("high_freq_factor");
  } else {
    read_yarn(rope, scaling);
  }
  return scaling;
}

std::vector<bool> rotating_layers(const FolderKeys& keys, const ModelConfig& config) {
  std::vector<bool> rotates(config.layers, true);
  if (config.architecture != "smollm3") return rotates;
  if (keys.has("no_rope_layers")) {  // named after the zeros in it: 1 is a layer with positions
    const std::vector<json> flags = keys.by_layer("no_rope_layers", config.layers);
    for (int32_t layer = 0; layer < config.layers; ++layer) rotates[layer] = flags[layer] != 0;
    return rotates;
  }
  const int32_t interval = keys.count_or("no_rope_layer_interval", 4, 1, kMostLayers);
  for (int32_t layer = 0; layer < config.layers; ++layer) rotates[layer] = (layer + 1) % interval != 0;
  return rotates;
}

void read_rope(const FolderKeys& keys, ModelConfig& config) {
  // Newer files have rope_parameters with theta inside, older ones rope_scaling and theta beside it.
  const json none = json::object();
  const FolderKeys rope = keys.has("rope_parameters") ? keys.object("rope_parameters")
                          : keys.has("rope_scaling")  ? keys.object("rope_scaling")
                                                      : FolderKeys(none, keys.path());
  check(rope.number_or("partial_rotary_factor", 1) == 1, rope.path(),
        ": partial_rotary_factor: only whole heads are rotated");
  const double theta = keys.number_or("rope_theta", config.architecture == "smollm3" ? 2e6 : 1e4);
  config.rotary = config.head_dim;
  config.rope_theta = rope.number_or("rope_theta", theta);
  config.rope_scaling = read_scaling(keys, rope, config.context);
  config.context = scaled_context(config.context, config.rope_scaling, keys.path());
  config.adjacent_pairs = false;
  config.rotates = rotating_layers(keys, config);
}

// Which layers a window holds in, where the file does not list them.
bool windowed_by_rule(const FolderKeys& keys, const ModelConfig& config, int32_t layer) {
  if (config.architecture == "mistral") return true;
  if (config.architecture == "smollm3") return !config.rotates[layer];
  return layer >= keys.count_or("max_window_layers", 28, 0, kMostContext);
}

int32_t read_window(const FolderKeys& keys, const ModelConfig& config) {
  if (config.architecture == "llama") return -1;
  if (config.architecture != "mistral" && !keys.flag_or("use_sliding_window", false)) return -1;
  if (keys.is_null("sliding_window")) return -1;
  return keys.count_or("sliding_window", 4096, 1, kMostContext) - 1;  // the row itself is one of them
}

void read_windows(const FolderKeys& keys, ModelConfig& config) {
  config.window = read_window(keys, config);
  config.windowed.assign(config.layers, false);
  if (config.window < 0) return;
  const bool listed = config.architecture != "mistral" && keys.has("layer_types");
  const std::vector<json> types = listed ? keys.by_layer("layer_types", config.layers) : std::vector<json>{};
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    check(!listed || types[layer] == "sliding_attention" || types[layer] == "full_attention", keys.path(),
          ": layer_types[", layer, "] is not full_attention or sliding_attention");
    config.windowed[layer] = listed ? types[layer] == "sliding_attention" : windowed_by_rule(keys, config, layer);
  }
}

}  // namespace

ModelConfig config_from_folder(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const json parsed = parse_file(path);
  const FolderKeys keys(parsed, path);
  ModelConfig config{};
  config.architecture = keys.text("model_type");
  check_architecture(config.architecture, path);
  config.name = (std::filesystem::absolute(folder) / "").lexically_normal().parent_path().filename().string();
  refuse_features(keys);
  read_widths(keys, config);
  read_heads(keys, config);
  read_rope(keys, config);
  read_windows(keys, config);
  check_config(config, path);
  return config;
}

}  // namespace quire::model
