#include "model_description.h"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "base/check.h"
#include "base/file_tensor.h"
#include "base/gguf.h"
#include "base/in_quotes.h"
#include "base/mapped_file.h"
#include "base/safetensors.h"
#include "base/strict_json.h"
#include "model/blocks.h"
#include "model/config.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

// One fact of the architecture, and where each format keeps it.
struct FactSource {
  const char* name;
  const char* gguf_key;  // after the architecture's name
  const char* config_key;
};
constexpr FactSource kFacts[] = {
    {"layers", "block_count", "num_hidden_layers"},
    {"width", "embedding_length", "hidden_size"},
    {"feed_forward_width", "feed_forward_length", "intermediate_size"},
    {"heads", "attention.head_count", "num_attention_heads"},
    {"kv_heads", "attention.head_count_kv", "num_key_value_heads"},
    {"head_size", "attention.key_length", "head_dim"},
    {"context", "context_length", "max_position_embeddings"},
    {"vocabulary", "vocab_size", "vocab_size"},
    {"rope_base", "rope.freq_base", "rope_theta"},
    {"norm_epsilon", "attention.layer_norm_rms_epsilon", "rms_norm_eps"},
};

std::vector<ModelDescription::Tensor> described(const std::vector<FileTensor>& tensors) {
  std::vector<ModelDescription::Tensor> all;
  for (const FileTensor& tensor : tensors)
    all.push_back({.name = tensor.name,
                   .type = tensor.type,
                   .dims = tensor.dims,
                   .elements = std::accumulate(tensor.dims.begin(), tensor.dims.end(), int64_t{1}, std::multiplies{}),
                   .bytes = std::ssize(tensor.data)});
  return all;
}

// Layers that follow each other and are computed alike are one entry.
void add_blocks(const model::ModelConfig& config, ModelDescription& model) {
  constexpr int64_t kDecodeRows = 1, kPrefillRows = 512;
  for (const int64_t rows : {kDecodeRows, kPrefillRows})
    for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
      const auto& spec = config.layers[static_cast<size_t>(layer)];
      std::string choice = to_string(model::choose_blocks(spec, Device::cpu, rows));
      if (layer > 0 && model.blocks.back().choice == choice)
        model.blocks.back().last_layer = layer;
      else
        model.blocks.push_back({layer, layer, rows, std::move(choice)});
    }
}

// config: reads the model's, or throws what is wrong with it for running.
template <class Config>
void try_blocks(Config config, ModelDescription& model) {
  try {
    add_blocks(config(), model);
  } catch (const CheckError& error) {
    model.not_run = error.what();
  }
}

// --- GGUF

ordered_json to_json(const GgufFile::Value& value) {
  return std::visit(
      [](const auto& held) -> ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, GgufFile::Array>) {
          constexpr size_t kShown = 4;
          ordered_json first = ordered_json::array();
          for (const GgufFile::Value& element : first_elements(held, kShown)) first.push_back(to_json(element));
          return {{"count", held.count}, {"first", std::move(first)}};
        } else {
          return held;
        }
      },
      value);
}

ModelDescription::Entry entry(std::string_view key, const GgufFile::Value& value) {
  return {.key = std::string(key), .value = to_json(value), .shown = to_string(value)};
}

void add_gguf_facts(const GgufFile& file, ModelDescription& model) {
  const auto* architecture = file.find("general.architecture");
  if (architecture == nullptr) return;
  model.facts.push_back(entry("architecture", *architecture));
  for (const FactSource& fact : kFacts)
    if (const auto* value = file.find(cat(file.text("general.architecture"), ".", fact.gguf_key)))
      model.facts.push_back(entry(fact.name, *value));
}

ModelDescription describe_gguf(const std::string& path) {
  const GgufFile file(path);
  ModelDescription model{.format = cat("GGUF version ", file.version()),
                         .files = {{path, std::ssize(file.file().bytes())}},
                         .facts = {},
                         .metadata = {},
                         .tensors = described(file.tensors())};
  add_gguf_facts(file, model);
  for (const auto& [key, value] : file.metadata()) model.metadata.push_back(entry(key, value));
  try_blocks([&] { return model::config_from_gguf(file); }, model);
  return model;
}

// --- Hugging Face folders

constexpr size_t kMostConfigBytes = size_t{16} << 20;
constexpr int kMostConfigDepth = 16;

std::string shown(const json& value) {
  constexpr size_t kMostShown = 100;
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= kMostShown ? text : text.substr(0, kMostShown) + "...";
}

ModelDescription::Entry entry(const std::string& key, const json& value) {
  return {.key = key, .value = value, .shown = shown(value)};
}

void add_config(const json& config, ModelDescription& model) {
  const auto add_fact = [&](const char* name, const char* key) {
    const auto value = config.find(key);
    if (value != config.end() && !value->is_null()) model.facts.push_back(entry(name, *value));
  };
  add_fact("architecture", "model_type");
  for (const FactSource& fact : kFacts) add_fact(fact.name, fact.config_key);
  for (const auto& [key, value] : config.items()) model.metadata.push_back(entry(key, value));
}

ModelDescription describe_folder(const std::string& path) {
  const SafetensorsFolder folder(path);
  ModelDescription model{
      .format = "safetensors", .files = {}, .facts = {}, .metadata = {}, .tensors = described(folder.tensors())};
  for (const MappedFile& file : folder.files()) model.files.push_back({file.path(), std::ssize(file.bytes())});
  const std::string config = fs::path(path) / "config.json";
  if (fs::exists(config)) add_config(read_json_file(config, kMostConfigBytes, kMostConfigDepth), model);
  try_blocks([&] { return model::config_from_folder(path); }, model);
  return model;
}

}  // namespace

ModelDescription describe_model(const std::string& path) {
  std::error_code unreadable;  // opening it says what is wrong
  return fs::is_directory(path, unreadable) ? describe_folder(path) : describe_gguf(path);
}

}  // namespace quire
