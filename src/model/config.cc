// What both kinds of model files have in common: the architectures, the rules between counts, the line for people.
#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::model {
namespace {

constexpr std::string_view kArchitectures[] = {"llama", "mistral", "qwen2", "qwen3", "smollm3"};

std::string known_architectures() {
  std::string names;
  for (const std::string_view name : kArchitectures) names += cat(names.empty() ? "" : ", ", name);
  return names;
}

void check_heads(const ModelConfig& config, std::string_view file) {
  check(config.heads % config.kv_heads == 0, file, ": ", config.heads, " heads are no multiple of ", config.kv_heads,
        " kv heads");
  check(config.head_dim % 16 == 0, file, ": heads of ", config.head_dim,
        " dims; attention takes multiples of 16 up to ", kMostHeadDim);
  check(int64_t{config.heads} * config.head_dim <= kMostWidth, file, ": ", config.heads, " heads of ", config.head_dim,
        " dims are more than ", kMostWidth);
  check(config.rotary % 2 == 0 && config.rotary >= 0 && config.rotary <= config.head_dim, file, ": ", config.rotary,
        " rotated dims in heads of ", config.head_dim);
}

}  // namespace

void check_architecture(std::string_view name, std::string_view file) {
  check(std::find(std::begin(kArchitectures), std::end(kArchitectures), name) != std::end(kArchitectures), file,
        ": the architecture ", in_quotes(name), " is not one of ", known_architectures());
}

int32_t scaled_context(int32_t context, const ops::RopeScaling& scaling, std::string_view file) {
  if (scaling.kind != ops::RopeScaling::Kind::yarn) return context;
  const double stretched = scaling.original_context * scaling.factor;
  check(stretched >= 1 && stretched <= kMostContext, file, ": yarn stretches a context of ", scaling.original_context,
        " by ", scaling.factor, ", which does not give one of 1 to ", kMostContext);
  return std::max(context, static_cast<int32_t>(stretched));
}

void check_config(const ModelConfig& config, std::string_view file) {
  check_heads(config, file);
  // Activations are quantised in blocks of 32.
  check(config.width % 32 == 0, file, ": a width of ", config.width, " is no multiple of 32");
  check(config.ffn_width % 32 == 0, file, ": a feed-forward width of ", config.ffn_width, " is no multiple of 32");
  check(int64_t{config.heads} * config.head_dim % 32 == 0, file, ": ", config.heads, " heads of ", config.head_dim,
        " dims are no multiple of 32");
  check(std::isfinite(config.norm_eps) && config.norm_eps > 0 && config.norm_eps < 1, file, ": the norm's epsilon is ",
        config.norm_eps);
  check(std::ssize(config.rotates) == config.layers && std::ssize(config.windowed) == config.layers, file, ": ",
        config.layers, " layers, but ", config.rotates.size(), " say whether they rotate and ", config.windowed.size(),
        " whether they have a window");
}

std::string to_string(const ModelConfig& config) {
  std::string text = cat(config.name, ": ", config.architecture, ", ", config.layers, " layers of width ", config.width,
                         " and ", config.ffn_width, ", ", config.heads, " heads of ", config.head_dim, " on ",
                         config.kv_heads, " kv heads, vocabulary ", config.vocabulary, ", context ", config.context);
  const auto windowed = std::count(config.windowed.begin(), config.windowed.end(), true);
  if (windowed > 0) text += cat(", window of ", config.window + 1, " in ", windowed, " layers");
  return text;
}

}  // namespace quire::model
