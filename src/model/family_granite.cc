// Granite 3: llama's layers with four multipliers. Attention's is the scale of its dots; the others stay numbers of the
// spec, because quantised weights cannot be multiplied without being rounded again.
#include "base/check.h"
#include "model/family.h"

namespace quire::model {
namespace {

constexpr Key kAttention = {"attention_multiplier", "attention.scale"};
constexpr Key kResidual = {"residual_multiplier", "residual_scale"};
constexpr Key kEmbedding = {"embedding_multiplier", "embedding_scale"};
constexpr Key kLogits = {"logits_scaling", "logit_scale"};  // divides
constexpr std::string_view kComputed[] = {kAttention.gguf, kResidual.gguf, kEmbedding.gguf, kLogits.gguf};

// What lies outside is a broken file: it, or its reciprocal, would overflow what it multiplies.
constexpr double kLeastMultiplier = 1e-6, kMostMultiplier = 1e6;

float multiplier(const Keys& keys, Key key, float otherwise) {
  if (!keys.has(key)) return otherwise;
  const double value = keys.number(key);
  if (keys.gguf() && value == 0) return otherwise;  // off
  check(value >= kLeastMultiplier && value <= kMostMultiplier, keys.path(), ": ", keys.shown(key),
        " is not between a millionth and a million");
  return static_cast<float>(value);
}

void read_granite(const Keys& keys, ModelConfig& config) {
  read_dense(keys, config, {.computed = kComputed});
  config.ropes.front().adjacent_pairs = keys.gguf() != nullptr;  // its converter is llama's
  config.embedding_scale = multiplier(keys, kEmbedding, 1);
  config.logits_scale = 1 / multiplier(keys, kLogits, 1);
  const bool rotates = keys.flag_or({nullptr, "rope.scaling.finetuned"}, true);  // of this family alone it means that
  for (LayerSpec& layer : config.layers) {
    if (!rotates) layer.attention.rope = -1;
    // What the two kinds of file mean that do not say: Hugging Face's class 1, GGUF's readers the usual scale.
    layer.attention.scale = multiplier(keys, kAttention, keys.gguf() ? layer.attention.scale : 1);
    layer.residual_scale = multiplier(keys, kResidual, 1);
  }
}

}  // namespace

extern const Family kGranite = {"granite", "GraniteForCausalLM", read_granite};

}  // namespace quire::model
