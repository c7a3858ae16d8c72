// The table of families, and what their files share.
#include "model/family.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::model {

extern const Family kLlama, kMistral, kQwen2, kQwen3, kSmolLm3, kOlmo2, kGranite;

namespace {

using ops::RopeScaling;

constexpr const Family* kFamilies[] = {&kLlama, &kMistral, &kQwen2, &kQwen3, &kSmolLm3, &kOlmo2, &kGranite};

std::string known_architectures() {
  std::string names;
  for (const Family* family : kFamilies) names += cat(names.empty() ? "" : ", ", family->architecture);
  return names;
}

// GGUF keys that change the arithmetic in a way that llama's layers do not have, or whose meaning readers disagree
// about.
constexpr std::string_view kUncommonKeys[] = {"expert_count",
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

// What would change the arithmetic and is not computed.
void refuse_features(const Keys& keys, std::span<const std::string_view> computed) {
  if (keys.gguf()) {
    for (const std::string_view key : kUncommonKeys)
      if (std::find(computed.begin(), computed.end(), key) == computed.end()) keys.refuse(key);
    return;
  }
  check(!keys.flag_or({"mlp_bias"}, false), keys.path(), ": mlp_bias = true is not something that quire computes");
  const std::string activation = keys.text_or({"hidden_act"}, "silu");
  check(activation == "silu", keys.path(), ": hidden_act = ", in_quotes(activation), ", only silu is computed");
  check(keys.number_or({"partial_rotary_factor"}, 1) == 1, keys.path(),
        ": partial_rotary_factor: only whole heads are rotated");
}

int32_t vocabulary_of(const GgufFile& file) {
  const FileTensor* embedding = file.tensor("token_embd.weight");
  check(embedding && embedding->dims.size() == 2, file.path(), ": there is no matrix token_embd.weight");
  check(embedding->dims[0] <= kMostVocabulary, file.path(), ": token_embd.weight has ", embedding->dims[0],
        " rows, more than ", kMostVocabulary);
  return static_cast<int32_t>(embedding->dims[0]);
}

constexpr Key kWidth = {"hidden_size", "embedding_length"};
constexpr Key kHeads = {"num_attention_heads", "attention.head_count"};

void read_globals(const Keys& keys, const DenseDefaults& defaults, ModelConfig& config) {
  const GgufFile* file = keys.gguf();
  config.width = keys.count(kWidth, 1, kMostWidth);
  config.context = keys.count({"max_position_embeddings", "context_length"}, 1, kMostContext);
  config.vocabulary = file ? vocabulary_of(*file) : keys.count({"vocab_size"}, 1, kMostVocabulary);
  config.norm_eps = static_cast<float>(keys.positive({"rms_norm_eps", "attention.layer_norm_rms_epsilon"}));
  config.tied_embedding = file ? !file->tensor("output.weight") : keys.flag_or({"tie_word_embeddings"}, defaults.tied);
}

// Of a file that does not say.
int32_t default_head_dim(const Keys& keys, const DenseDefaults& defaults, int32_t width, int32_t heads) {
  if (!keys.gguf() && defaults.head_dim > 0) return defaults.head_dim;
  check(width % heads == 0 && is_head_dim(width / heads), keys.path(), ": ", keys.shown(kWidth), " and ",
        keys.shown(kHeads), " make no heads of a multiple of ", kLeastHeadDim, " dims up to ", kMostHeadDim);
  return width / heads;
}

AttentionSpec read_attention(const Keys& keys, const DenseDefaults& defaults, const ModelConfig& config) {
  AttentionSpec spec{};
  spec.heads = keys.count(kHeads, 1, kMostHeads);
  spec.kv_heads = keys.count_or({"num_key_value_heads", "attention.head_count_kv"}, spec.heads, 1, kMostHeads);
  constexpr Key kHeadDim = {"head_dim", "attention.key_length"};
  spec.key_dim = keys.has(kHeadDim) ? keys.count(kHeadDim, kLeastHeadDim, kMostHeadDim)
                                    : default_head_dim(keys, defaults, config.width, spec.heads);
  spec.value_dim = keys.count_or({nullptr, "attention.value_length"}, spec.key_dim, kLeastHeadDim, kMostHeadDim);
  spec.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.key_dim)));
  spec.qkv_bias =
      keys.gguf() ? keys.gguf()->tensor("blk.0.attn_q.bias") != nullptr : keys.flag_or({"attention_bias"}, false);
  return spec;
}

// --- positions

// The keys of scaling in a folder: newer files have rope_parameters with theta inside, older ones rope_scaling and
// theta beside it.
Keys rope_keys(const Keys& keys) {
  static const nlohmann::json kNone = nlohmann::json::object();
  for (const char* name : {"rope_parameters", "rope_scaling"})
    if (keys.has({name})) return keys.object(name);
  return {kNone, keys.path()};
}

RopeScaling::Kind kind_of(const Keys& rope) {
  const std::string name = rope.text_or({"rope_type"}, rope.text_or({"type"}, "default"));
  if (name == "default") return RopeScaling::Kind::none;
  if (name == "linear") return RopeScaling::Kind::linear;
  if (name == "llama3") return RopeScaling::Kind::llama3;
  check(name == "yarn", rope.path(), ": rope_type = ", in_quotes(name), " is not one of default, linear, llama3, yarn");
  return RopeScaling::Kind::yarn;
}

void read_yarn(const Keys& rope, RopeScaling& scaling) {
  scaling.beta_fast = rope.positive_or({"beta_fast"}, scaling.beta_fast);
  scaling.beta_slow = rope.positive_or({"beta_slow"}, scaling.beta_slow);
  scaling.attention_factor = rope.positive_or({"attention_factor"}, 0);
  check(rope.flag_or({"truncate"}, true), rope.path(), ": truncate = false is not something that quire computes");
  check(!rope.has({"mscale"}) && !rope.has({"mscale_all_dim"}), rope.path(),
        ": mscale is not something that quire computes");
}

RopeScaling folder_scaling(const Keys& keys, const Keys& rope, int32_t context) {
  constexpr Key kOriginal = {"original_max_position_embeddings"};
  RopeScaling scaling;
  scaling.kind = kind_of(rope);
  if (scaling.kind == RopeScaling::Kind::none) return {};
  scaling.factor = rope.positive({"factor"});
  if (scaling.kind == RopeScaling::Kind::linear) return scaling;
  scaling.original_context = rope.positive_or(kOriginal, keys.positive_or(kOriginal, context));
  if (scaling.kind == RopeScaling::Kind::llama3) {
    scaling.low_frequency_factor = rope.positive({"low_freq_factor"});
    scaling.high_frequency_factor = rope.positive({"high_freq_factor"});
  } else {
    read_yarn(rope, scaling);
  }
  return scaling;
}

RopeScaling gguf_scaling(const Keys& keys, int32_t context) {
  const auto positive = [&](const char* name, double otherwise) {
    return keys.positive_or({nullptr, name}, otherwise);
  };
  constexpr Key kMix = {nullptr, "rope.scaling.yarn_ext_factor"};
  RopeScaling scaling;
  const std::string kind = keys.text_or({nullptr, "rope.scaling.type"}, "linear");
  constexpr Key kFactor = {nullptr, "rope.scaling.factor"}, kOldFactor = {nullptr, "rope.scale_linear"};
  const Key factor = keys.has(kFactor) ? kFactor : kOldFactor;
  if (kind == "none" || keys.number_or(factor, 1) == 0) return {};
  scaling.factor = keys.positive_or(factor, 1);
  if (kind == "linear" && scaling.factor == 1) return {};
  check(kind == "linear" || kind == "yarn", keys.path(), ": ", keys.name({nullptr, "rope.scaling.type"}), " = ",
        in_quotes(kind), " is not one of none, linear, yarn");
  scaling.kind = kind == "yarn" ? RopeScaling::Kind::yarn : RopeScaling::Kind::linear;
  const double mix = keys.number_or(kMix, 1);
  check(mix == 1 || mix < 0, keys.path(), ": ", keys.name(kMix), " = ", mix, ": only 1 is computed");
  if (scaling.kind == RopeScaling::Kind::linear) return scaling;
  scaling.original_context = positive("rope.scaling.original_context_length", context);
  scaling.beta_fast = positive("rope.scaling.yarn_beta_fast", scaling.beta_fast);
  scaling.beta_slow = positive("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  return scaling;
}

RopeSpec read_rope(const Keys& keys, const DenseDefaults& defaults, const ModelConfig& config, int32_t head_dim) {
  if (keys.gguf())
    return {.rotary = keys.count_or({nullptr, "rope.dimension_count"}, head_dim, 2, kMostHeadDim),
            .adjacent_pairs = false,
            .theta = keys.positive_or({nullptr, "rope.freq_base"}, 1e4),
            .scaling = gguf_scaling(keys, config.context)};
  const Keys rope = rope_keys(keys);
  check(rope.number_or({"partial_rotary_factor"}, 1) == 1, rope.path(),
        ": partial_rotary_factor: only whole heads are rotated");
  return {.rotary = head_dim,
          .adjacent_pairs = false,
          .theta = rope.positive_or({"rope_theta"}, keys.positive_or({"rope_theta"}, defaults.theta)),
          .scaling = folder_scaling(keys, rope, config.context)};
}

// The context that a file means which says `context` and scales positions so. Yarn stretches the original context by
// its factor; some files give the stretched length, others (Qwen's recipe) keep the short one: the longer of the two is
// meant.
int32_t scaled_context(int32_t context, const RopeScaling& scaling, std::string_view file) {
  if (scaling.kind != RopeScaling::Kind::yarn) return context;
  const double stretched = scaling.original_context * scaling.factor;
  check(stretched >= 1 && stretched <= kMostContext, file, ": yarn stretches a context of ", scaling.original_context,
        " by ", scaling.factor, ", which does not give one of 1 to ", kMostContext);
  return std::max(context, static_cast<int32_t>(stretched));
}

}  // namespace

const Family& family_of(std::string_view architecture, std::string_view file) {
  for (const Family* family : kFamilies)
    if (family->architecture == architecture) return *family;
  throw CheckError(cat(file, ": the architecture ", in_quotes(architecture), " is not one of ", known_architectures()));
}

void read_dense(const Keys& keys, ModelConfig& config, const DenseDefaults& defaults) {
  refuse_features(keys, defaults.computed);
  read_globals(keys, defaults, config);
  const LayerSpec layer{
      .attention = read_attention(keys, defaults, config),
      .feed_forward = {.width = keys.count({"intermediate_size", "feed_forward_length"}, 1, kMostFfnWidth)}};
  config.layers.assign(keys.count({"num_hidden_layers", "block_count"}, 1, kMostLayers), layer);
  config.ropes = {read_rope(keys, defaults, config, layer.attention.key_dim)};
  config.context = scaled_context(config.context, config.ropes.front().scaling, keys.path());
}

int32_t gguf_window(const Keys& keys) {
  return keys.count_or({nullptr, "attention.sliding_window"}, 0, 0, kMostContext) - 1;
}

void read_listed_windows(const Keys& keys, ModelConfig& config, LayerRule rule) {
  if (keys.gguf()) return set_window(config, gguf_window(keys), in_every_layer);
  if (!keys.flag_or({"use_sliding_window"}, false) || keys.is_null("sliding_window")) return;
  const int32_t window = keys.count_or({"sliding_window"}, 4096, 1, kMostContext) - 1;  // the row itself is one of them
  if (!keys.has({"layer_types"}))
    return set_window(config, window, [&](int32_t layer) { return rule(keys, config, layer); });
  const std::vector<nlohmann::json> types = keys.by_layer("layer_types", config.layer_count());
  set_window(config, window, [&](int32_t layer) {
    check(types[layer] == "sliding_attention" || types[layer] == "full_attention", keys.path(), ": layer_types[", layer,
          "] is not full_attention or sliding_attention");
    return types[layer] == "sliding_attention";
  });
}

}  // namespace quire::model
