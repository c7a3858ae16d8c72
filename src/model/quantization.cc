#include "model/quantization.h"

#include <algorithm>
#include <charconv>
#include <regex>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::model {
namespace {

using nlohmann::json;

class SchemeReader {
 public:
  SchemeReader(const json& object, std::string_view path) : object_(object), path_(path) {
    check(object.is_object(), path_, ": quantization_config is not an object but ", object.type_name());
  }

  QuantizationScheme read() {
    const std::string method = text(object_, "quant_method");
    if (method == "fp8") return fp8();
    if (method == "compressed-tensors") return compressed_tensors();
    if (method == "modelopt") return modelopt();
    if (method == "gguf") return gguf();
    refuse("quant_method", method);
  }

 private:
  QuantizationScheme fp8() {
    const std::string format = text(object_, "fmt");
    if (!format.empty() && format != "e4m3") refuse("fmt", format);
    QuantizationScheme scheme;
    if (has(object_, "weight_block_size")) set_block(scheme, object_["weight_block_size"]);
    scheme.dense = {"lm_head"};
    add_modules(scheme, "modules_to_not_convert");
    add_modules(scheme, "ignored_layers");
    return scheme;
  }

  QuantizationScheme compressed_tensors() {
    const std::string format = text(object_, "format");
    if (!format.empty() && format != "float-quantized") refuse("format", format);
    const auto groups = object_.find("config_groups");
    check(groups != object_.end() && groups->is_object() && groups->size() == 1, path_,
          ": quantization_config: config_groups is not one group, the only number that is computed");
    const json& group = *groups->begin();
    check(group.is_object() && group.contains("weights") && group["weights"].is_object(), path_,
          ": quantization_config: config_groups has no weights");
    const json& weights = group["weights"];
    if (text(weights, "type") != "float") refuse("weights.type", text(weights, "type"));
    check(weights.value("num_bits", json(8)) == 8, path_, ": quantization_config: weights.num_bits is not 8");
    QuantizationScheme scheme;
    const std::string strategy = text(weights, "strategy");
    if (strategy == "channel")
      scheme.scales = QuantizationScheme::Scales::channel;
    else if (strategy == "block")
      scheme.scales = QuantizationScheme::Scales::block;
    else if (strategy != "tensor")
      refuse("weights.strategy", strategy);
    if (strategy == "block" && has(weights, "block_structure")) set_block(scheme, weights["block_structure"]);
    add_modules(scheme, "ignore");
    return scheme;
  }

  QuantizationScheme modelopt() {
    if (text(object_, "quant_algo") != "FP8") refuse("quant_algo", text(object_, "quant_algo"));
    QuantizationScheme scheme;
    add_modules(scheme, "ignore");
    add_modules(scheme, "exclude_modules");
    return scheme;
  }

  QuantizationScheme gguf() {
    const std::string name = text(object_, "type");
    QuantizationScheme scheme;
    scheme.mixed = name == "Q4_K_M";
    const auto* found = std::find_if(std::begin(kBlockTypes), std::end(kBlockTypes),
                                     [&](BlockType type) { return (scheme.mixed ? "Q4_K" : name) == to_string(type); });
    if (found == std::end(kBlockTypes)) refuse("type", name);
    scheme.type = *found;
    return scheme;
  }

  [[noreturn]] void refuse(const char* key, const std::string& value) const {
    throw CheckError(cat(path_, ": quantization_config: ", key, " = ", in_quotes(value),
                         " is not computed; of folders, weights are F32, F16, BF16, or F8_E4M3 as fp8, "
                         "compressed-tensors (float-quantized) and modelopt (FP8) write it"));
  }
  static bool has(const json& object, const char* key) { return object.contains(key) && !object[key].is_null(); }
  // Empty where it is missing.
  std::string text(const json& object, const char* key) const {
    if (!has(object, key)) return "";
    check(object[key].is_string(), path_, ": quantization_config: ", key, " is not a string");
    return object[key].get<std::string>();
  }
  void set_block(QuantizationScheme& scheme, const json& block) const {
    constexpr uint64_t kMostSide = uint64_t{1} << 20;
    const auto is_side = [](const json& side) {
      return side.is_number_unsigned() && side.get<uint64_t>() >= 1 && side.get<uint64_t>() <= kMostSide;
    };
    check(block.is_array() && block.size() == 2 && is_side(block[0]) && is_side(block[1]), path_,
          ": quantization_config: a block of weights is two numbers from 1 to ", kMostSide, ", not ",
          in_quotes(block.dump()));
    scheme.scales = QuantizationScheme::Scales::block;
    scheme.block_outputs = block[0].get<int64_t>();
    scheme.block_inputs = block[1].get<int64_t>();
  }
  void add_modules(QuantizationScheme& scheme, const char* key) const {
    if (!has(object_, key)) return;
    check(object_[key].is_array(), path_, ": quantization_config: ", key, " is not a list");
    for (const json& name : object_[key]) {
      check(name.is_string(), path_, ": quantization_config: ", key, " has ", in_quotes(name.dump()), ", not a name");
      scheme.dense.push_back(name.get<std::string>());
    }
  }

  const json& object_;
  std::string_view path_;
};

bool names_module(const std::string& entry, const std::string& module) {
  if (!entry.starts_with("re:")) return entry == module;
  try {
    return std::regex_match(module, std::regex(entry.substr(3)));
  } catch (const std::regex_error&) {
    return false;
  }
}

// As llama.cpp mixes Q4_K_M.
bool is_finer(std::string_view module, int32_t layers) {
  constexpr std::string_view kLayers = "model.layers.";
  if (module == "lm_head") return true;
  if (!module.ends_with("v_proj") && !module.ends_with("down_proj")) return false;
  int32_t layer = 0;
  std::from_chars(module.data() + kLayers.size(), module.data() + module.size(), layer);
  const int32_t eighth = layers / 8;
  return layer < eighth || layer >= layers - eighth || (layer - eighth) % 3 == 2;
}

}  // namespace

BlockType QuantizationScheme::type_of(std::string_view name, int32_t layers) const {
  constexpr std::string_view kWeight = ".weight";
  const std::string module(name.substr(0, name.size() - kWeight.size()));
  if (!module.ends_with("_proj") && module != "lm_head") return BlockType::bf16;
  if (std::any_of(dense.begin(), dense.end(), [&](const std::string& entry) { return names_module(entry, module); }))
    return BlockType::bf16;
  return mixed && is_finer(module, layers) ? BlockType::q6_k : type;
}

std::optional<QuantizationScheme> quantization_of(const json& config, std::string_view path) {
  if (!config.is_object() || !config.contains("quantization_config") || config["quantization_config"].is_null())
    return std::nullopt;
  return SchemeReader(config["quantization_config"], path).read();
}

}  // namespace quire::model
