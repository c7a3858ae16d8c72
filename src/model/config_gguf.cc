// A model's shape from the metadata of a GGUF file: keys that begin with the architecture's name.
#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "model/config.h"

namespace quire::model {
namespace {

using ops::RopeScaling;

// Keys that change the arithmetic in a way that the five architectures do not have, or whose meaning readers disagree
// about. Zero, where it is given, means that the feature is off.
constexpr std::string_view kRefusedKeys[] = {"expert_count",
                                             "attention.scale",
                                             "attention.clamp_kqv",
                                             "attention.sliding_window_pattern",
                                             "attention.temperature_scale",
                                             "attn_logit_softcapping",
                                             "final_logit_softcapping",
                                             "embedding_scale",
                                             "residual_scale",
                                             "logit_scale",
                                             "rope.dimension_sections",
                                             "rope.scaling.alpha",
                                             "rope.scaling.attn_factor",
                                             "rope.scaling.yarn_attn_factor",
                                             "rope.scaling.yarn_log_multiplier"};

class GgufKeys {
 public:
  explicit GgufKeys(const GgufFile& file) : file_(file), architecture_(file.text("general.architecture")) {
    check_architecture(architecture_, file.path());
    for (const std::string_view name : kRefusedKeys) refuse(name);
  }

  const std::string& architecture() const { return architecture_; }
  const std::string& path() const { return file_.path(); }
  bool has(std::string_view name) const { return file_.has(key(name)); }
  double number(std::string_view name) const { return file_.number(key(name)); }
  double number(std::string_view name, double otherwise) const { return file_.number(key(name), otherwise); }
  std::string text(std::string_view name, std::string_view otherwise) const { return file_.text(key(name), otherwise); }
  int32_t count(std::string_view name, int32_t least, int32_t most) const {
    return in_range(name, file_.integer(key(name)), least, most);
  }
  int32_t count_or(std::string_view name, int32_t otherwise, int32_t least, int32_t most) const {
    return in_range(name, file_.integer(key(name), otherwise), least, most);
  }
  // The text of a refusal: the file, the key and what is said of it.
  template <class... Parts>
  void check_key(bool holds, std::string_view name, const Parts&... parts) const {
    check(holds, file_.path(), ": ", key(name), " = ", has(name) ? to_string(*file_.find(key(name))) : "nothing",
          parts...);
  }

 private:
  std::string key(std::string_view name) const { return cat(architecture_, ".", name); }
  int32_t in_range(std::string_view name, int64_t value, int32_t least, int32_t most) const {
    check(value >= least && value <= most, file_.path(), ": ", key(name), " = ", value, " is not between ", least,
          " and ", most);
    return static_cast<int32_t>(value);
  }
  void refuse(std::string_view name) const {
    const GgufFile::Value* value = file_.find(key(name));
    const bool off = !value || (std::holds_alternative<uint64_t>(*value) && std::get<uint64_t>(*value) == 0) ||
                     (std::holds_alternative<int64_t>(*value) && std::get<int64_t>(*value) == 0) ||
                     (std::holds_alternative<double>(*value) && std::get<double>(*value) == 0);
    check_key(off, name, " is not something that quire computes");
  }

  const GgufFile& file_;
  std::string architecture_;
};

void read_widths(const GgufKeys& keys, ModelConfig& config) {
  config.layers = keys.count("block_count", 1, kMostLayers);
  config.width = keys.count("embedding_length", 1, kMostWidth);
  config.ffn_width = keys.count("feed_forward_length", 1, kMostFfnWidth);
  config.context = keys.count("context_length", 1, kMostContext);
  config.norm_eps = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon"));
}

void read_heads(const GgufKeys& keys, ModelConfig& config) {
  config.heads = keys.count("attention.head_count", 1, kMostHeads);
  config.kv_heads = keys.count_or("attention.head_count_kv", config.heads, 1, kMostHeads);
  config.head_dim = keys.count_or("attention.key_length", config.width / config.heads, 1, kMostHeadDim);
  const int32_t value_dim = keys.count_or("attention.value_length", config.head_dim, 1, kMostHeadDim);
  keys.check_key(value_dim == config.head_dim, "attention.value_length", " differs from the keys' ", config.head_dim);
}

RopeScaling read_scaling(const GgufKeys& keys, int32_t context) {
  RopeScaling scaling;
  const std::string kind = keys.text("rope.scaling.type", "linear");
  scaling.factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1));
  if (kind == "none" || scaling.factor == 0 || (kind == "linear" && scaling.factor == 1)) return {};
  keys.check_key(kind == "linear" || kind == "yarn", "rope.scaling.type", " is not one of none, linear, yarn");
  scaling.kind = kind == "yarn" ? RopeScaling::Kind::yarn : RopeScaling::Kind::linear;
  scaling.original_context = keys.number("rope.scaling.original_context_length", context);
  scaling.beta_fast = keys.number("rope.scaling.yarn_beta_fast", scaling.beta_fast);
  scaling.beta_slow = keys.number("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  const double mix = keys.number("rope.scaling.yarn_ext_factor", 1);
  keys.check_key(mix == 1 || mix < 0, "rope.scaling.yarn_ext_factor", ": only 1 is computed");
  return scaling;
}

// Converters put the rotated pairs of llama's and SmolLM3's queries and keys side by side.
bool has_adjacent_pairs(std::string_view architecture) {
  return architecture == "llama" || architecture == "mistral" || architecture == "smollm3";
}

void read_rope(const GgufKeys& keys, ModelConfig& config) {
  config.rotary = keys.count_or("rope.dimension_count", config.head_dim, 2, kMostHeadDim);
  config.rope_theta = keys.number("rope.freq_base", 10000);
  config.rope_scaling = read_scaling(keys, config.context);
  config.context = scaled_context(config.context, config.rope_scaling, keys.path());
  config.adjacent_pairs = has_adjacent_pairs(config.architecture);
  config.rotates.assign(config.layers, true);
  if (config.architecture == "smollm3")  // fixed by the architecture: every fourth layer knows no positions
    for (int32_t layer = 3; layer < config.layers; layer += 4) config.rotates[layer] = false;
}

void read_window(const GgufKeys& keys, ModelConfig& config) {
  config.window = keys.count_or("attention.sliding_window", 0, 0, kMostContext) - 1;
  config.windowed.assign(config.layers, config.window >= 0);
}

void read_tensors(const GgufFile& file, ModelConfig& config) {
  const FileTensor* embedding = file.tensor("token_embd.weight");
  check(embedding && embedding->dims.size() == 2, file.path(), ": there is no matrix token_embd.weight");
  check(embedding->dims[0] <= kMostVocabulary, file.path(), ": token_embd.weight has ", embedding->dims[0],
        " rows, more than ", kMostVocabulary);
  config.vocabulary = static_cast<int32_t>(embedding->dims[0]);
  config.tied_embedding = !file.tensor("output.weight");
  config.qkv_bias = file.tensor("blk.0.attn_q.bias");
  config.qk_norm = file.tensor("blk.0.attn_q_norm.weight");
}

}  // namespace

ModelConfig config_from_gguf(const GgufFile& file) {
  const GgufKeys keys(file);
  ModelConfig config{};
  config.architecture = keys.architecture();
  config.name = file.text("general.name", std::filesystem::path(file.path()).stem().string());
  read_widths(keys, config);
  read_heads(keys, config);
  read_rope(keys, config);
  read_window(keys, config);
  read_tensors(file, config);
  check_config(config, file.path());
  return config;
}

}  // namespace quire::model
