// From a file to specs, through its family; the rules between counts; the line for people.
#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/strict_json.h"
#include "model/family.h"

namespace quire::model {
namespace {

constexpr size_t kMostConfigBytes = size_t{16} << 20;
constexpr int kMostConfigDepth = 16;

void check_heads(const AttentionSpec& spec, const ModelConfig& config, std::string_view file) {
  check(spec.heads % spec.kv_heads == 0, file, ": ", spec.heads, " heads are no multiple of ", spec.kv_heads,
        " kv heads");
  for (const int32_t dim : {spec.key_dim, spec.value_dim})
    check(is_head_dim(dim), file, ": heads of ", dim, " dims; attention takes multiples of ", kLeastHeadDim, " up to ",
          kMostHeadDim);
  check(spec.q_width() <= kMostWidth, file, ": ", spec.heads, " heads of ", spec.key_dim, " dims are more than ",
        kMostWidth);
  check(spec.q_width() % 32 == 0, file, ": ", spec.heads, " heads of ", spec.key_dim, " dims are no multiple of 32");
  for (const RopeSpec& rope : config.ropes)
    check(rope.rotary % 2 == 0 && rope.rotary >= 0 && rope.rotary <= spec.key_dim, file, ": ", rope.rotary,
          " rotated dims in heads of ", spec.key_dim);
}

// Numbers that make sense one by one may still overflow together: the table itself is asked.
void check_rope(const RopeSpec& rope, std::string_view file) {
  const auto finite = [](float value) { return std::isfinite(value); };
  const ops::RopeTable table =
      errors_about(file, [&] { return ops::rope_table(rope.rotary, rope.theta, rope.scaling); });
  check(std::ranges::all_of(table.inverse_frequency, finite) && finite(table.magnitude) && table.magnitude > 0, file,
        ": rope's theta and scaling make angles or magnitudes that are no numbers");
}

// What a spec can say and nobody computes yet.
void check_computed(const LayerSpec& layer, const AttentionSpec& first, std::string_view file) {
  const AttentionSpec& spec = layer.attention;
  check(spec.value_dim == spec.key_dim, file, ": values of ", spec.value_dim, " dims beside keys of ", spec.key_dim,
        " are not computed yet");
  check(spec.heads == first.heads && spec.kv_heads == first.kv_heads && spec.key_dim == first.key_dim, file,
        ": layers with heads of different shapes are not computed yet");
  check(spec.kind == attn::LayerKind::full, file, ": attention of the kind ", spec.kind, " is not computed yet");
  check(spec.softcap == 0, file, ": softcap is not computed yet");
  check(!spec.sinks, file, ": attention sinks are not computed yet");
  check(spec.latent_rank == 0, file, ": latent attention is not computed yet");
}

ModelConfig read_config(const Keys& keys, const std::string& architecture, std::string name) {
  ModelConfig config{};
  config.architecture = architecture;
  config.name = std::move(name);
  family_of(architecture, keys.path()).read(keys, config);
  check_config(config, keys.path());
  return config;
}

}  // namespace

void check_config(const ModelConfig& config, std::string_view file) {
  // Activations are quantised in blocks of 32.
  check(config.width % 32 == 0, file, ": a width of ", config.width, " is no multiple of 32");
  check(std::isfinite(config.norm_eps) && config.norm_eps > 0 && config.norm_eps < 1, file, ": the norm's epsilon is ",
        config.norm_eps);
  for (const LayerSpec& layer : config.layers) {
    check_heads(layer.attention, config, file);
    check_computed(layer, config.attention(), file);
    check(layer.feed_forward.width % 32 == 0, file, ": a feed-forward width of ", layer.feed_forward.width,
          " is no multiple of 32");
  }
  for (const RopeSpec& rope : config.ropes) check_rope(rope, file);
}

ModelConfig config_from_gguf(const GgufFile& file) {
  const std::string architecture = file.text("general.architecture");
  return read_config({file, architecture + "."}, architecture,
                     file.text("general.name", std::filesystem::path(file.path()).stem().string()));
}

ModelConfig config_from_folder(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const nlohmann::json parsed = read_json_file(path, kMostConfigBytes, kMostConfigDepth);
  const Keys keys(parsed, path);
  ModelConfig config =
      read_config(keys, keys.text({"model_type"}),
                  (std::filesystem::absolute(folder) / "").lexically_normal().parent_path().filename().string());
  config.quantization = quantization_of(parsed, path);
  return config;
}

int32_t ModelConfig::ffn_width() const {
  int32_t widest = 0;
  for (const LayerSpec& layer : layers) widest = std::max(widest, layer.feed_forward.width);
  return widest;
}

int64_t ModelConfig::kv_elements() const {
  int64_t elements = 0;
  for (const LayerSpec& layer : layers) elements += layer.attention.k_width() + layer.attention.v_width();
  return elements;
}

std::string to_string(const ModelConfig& config) {
  const AttentionSpec& heads = config.attention();
  std::string text =
      cat(config.name, ": ", config.architecture, ", ", config.layers.size(), " layers of width ", config.width,
          " and ", config.ffn_width(), ", ", heads.heads, " heads of ", heads.key_dim, " on ", heads.kv_heads,
          " kv heads, vocabulary ", config.vocabulary, ", context ", config.context);
  const auto has_window = [](const LayerSpec& layer) { return layer.attention.window >= 0; };
  const auto windowed = std::count_if(config.layers.begin(), config.layers.end(), has_window);
  if (windowed > 0) {
    const auto first = std::find_if(config.layers.begin(), config.layers.end(), has_window);
    text += cat(", window of ", first->attention.window + 1, " in ", windowed, " layers");
  }
  return text;
}

}  // namespace quire::model
