#include "model/eagle_head.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/in_quotes.h"
#include "base/json_fields.h"
#include "base/mapped_file.h"
#include "base/safetensors.h"
#include "base/strict_json.h"
#include "base/torch_file.h"
#include "model/family.h"
#include "ops/packed_rows.h"

namespace quire::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ops::PackedMatrix;
using ops::WeightView;
using Dims = std::vector<int64_t>;

constexpr int32_t kFeatures = FeatureProjection::kFeatures;
constexpr size_t kMostHeadConfigBytes = size_t{1} << 20;
constexpr JsonLimits kHeadConfigLimits{.depth = 8, .keys = 1000, .values = 10'000};

std::string shape_text(const Dims& dims) {
  std::string text = "[";
  for (const int64_t dim : dims) text += cat(text.size() > 1 ? ", " : "", dim);
  return text + "]";
}

// --- what the files say

void check_known(const json& object, std::initializer_list<std::string_view> known, std::string_view where) {
  for (const auto& [key, value] : object.items())
    check(std::find(known.begin(), known.end(), key) != known.end(), where, " has the unknown key ", in_quotes(key));
}

std::array<int32_t, kFeatures> read_layers(const json& list, std::string_view name, int32_t layers) {
  check(list.is_array() && list.size() == kFeatures, name, " is not an array of ", kFeatures, " layers");
  std::array<int32_t, kFeatures> read{};
  for (int32_t i = 0; i < kFeatures; ++i) read[i] = to_count(list[i], name, 0, layers - 1);
  check(read[0] < read[1] && read[1] < read[2], name, " = ", list.dump(), " does not ascend");
  return read;
}

// The layer's shape by the keys that Hugging Face's Llama has; `layers` and `context` stand for what a head's own file
// leaves out.
EagleSpec read_shape(json config, const Model& target, const std::string& path) {
  const ModelConfig& of = target.config();
  ModelConfig shape{};
  read_dense(Keys(config, path), shape);
  check_config(shape, path);
  const LayerSpec& layer = shape.layers.front();
  check(shape.layer_count() == 1, path, ": a head of ", shape.layer_count(), " layers, not of one");
  check(!layer.attention.qkv_bias, path, ": attention_bias = true is not something that heads compute");
  check(shape.width == of.width, path, ": a head of width ", shape.width, ", for a target of width ", of.width);
  check(shape.vocabulary == of.vocabulary, path, ": a head for ", shape.vocabulary, " tokens, and the target has ",
        of.vocabulary);
  return {.feature_layers = {},
          .width = shape.width,
          .vocabulary = shape.vocabulary,
          .draft_vocabulary = Keys(config, path).count_or({"draft_vocab_size"}, shape.vocabulary, 1, shape.vocabulary),
          .layer = layer,
          .rope = shape.ropes.front(),
          .norm_eps = shape.norm_eps,
          .norm_features = false,
          .norm_output = false};
}

std::string hexadecimal(uint64_t number) {
  char digits[16];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), number, 16).ptr;
  const std::string text(digits, end);
  return std::string(16 - text.size(), '0') + text;
}

bool required_flag(const json& config, std::string_view key) {
  check(field(config, key).is_boolean(), key, " is not true or false but ", field(config, key).type_name());
  return config.at(key).get<bool>();
}

// quire's own. Keys that it leaves out are those of every head.
EagleSpec read_own_config(json config, const Model& target, const std::string& path) {
  return errors_about(path, [&] {
    check_known(config,
                {"target_fingerprint", "feature_layers", "alignment", "hidden_size", "intermediate_size",
                 "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "vocab_size",
                 "draft_vocab_size", "fc_norm", "norm_output", "temperature"},
                "config");
    for (const char* key : {"head_dim", "num_key_value_heads", "rope_theta", "draft_vocab_size"}) field(config, key);
    const std::string own = hexadecimal(target.fingerprint()), &wanted = text_field(config, "target_fingerprint");
    check(wanted == own, "is a head for another model: for one with the fingerprint ", in_quotes(wanted),
          ", and that of ", target.config().name, " is ", own);
    check(text_field(config, "alignment") == "token", "alignment = ", in_quotes(text_field(config, "alignment")),
          " is not \"token\"");
    config["num_hidden_layers"] = 1;
    config["max_position_embeddings"] = target.config().context;
    EagleSpec spec = read_shape(config, target, "config");
    spec.feature_layers = read_layers(field(config, "feature_layers"), "feature_layers", target.config().layer_count());
    spec.norm_features = required_flag(config, "fc_norm");
    spec.norm_output = required_flag(config, "norm_output");
    spec.temperature = static_cast<float>(Keys(config, "config").positive_or({"temperature"}, 1));
    return spec;
  });
}

// EAGLE's ids name the layers whose outputs are meant: inputs of the ones after them.
std::array<int32_t, kFeatures> folder_layers(const json& eagle, int32_t layers) {
  constexpr const char* kIds = "eagle_aux_hidden_state_layer_ids";
  if (optional_field(eagle, kIds).is_null()) {
    check(layers >= 6, "a target of ", layers, " layers has no usual features: ", kIds, " is missing");
    return {2, layers / 2, layers - 3};
  }
  std::array<int32_t, kFeatures> ids = read_layers(field(eagle, kIds), kIds, layers - 1);
  for (int32_t& id : ids) ++id;
  return ids;
}

EagleSpec read_folder_config(const json& config, const Model& target, const std::string& path) {
  const json& classes = errors_about(path, [&]() -> const json& { return list_field(config, "architectures"); });
  check(classes == json::array({"LlamaForCausalLMEagle3"}), path, ": architectures = ", classes.dump(),
        " is not that of a head, LlamaForCausalLMEagle3");
  EagleSpec spec = read_shape(config, target, path);
  errors_about(path, [&] {
    static const json kNone = json::object();
    const json& given = optional_field(config, "eagle_config");
    const json& eagle = given.is_null() ? kNone : given;
    const auto flag = [&](const char* key) { return flag_field(config, key, flag_field(eagle, key, false)); };
    for (const char* key : {"norm_before_fc", "norm_before_residual"})
      check(!flag(key), key, " = true is not something that heads compute");
    check(flag_field(eagle, "use_aux_hidden_state", true), "use_aux_hidden_state = false: features of three layers");
    const json& wide = optional_field(config, "target_hidden_size");
    check(wide.is_null() || wide == spec.width, "target_hidden_size = ", wide.dump(), ", and the head's is ",
          spec.width);
    spec.feature_layers = folder_layers(eagle, target.config().layer_count());
    spec.norm_features = flag("fc_norm");
    spec.norm_output = flag("norm_output");
  });
  return spec;
}

// --- tensors

BlockType blocks_named(std::string_view name) {
  for (const BlockType type : kBlockTypes)
    if (shape_of(type).elements > 1 && name == to_string(type)) return type;
  throw CheckError(cat("types names the unknown type ", in_quotes(name)));
}

std::optional<BlockType> dense_type(std::string_view dtype) {
  for (const BlockType type : {BlockType::f32, BlockType::f16, BlockType::bf16})
    if (dtype == to_string(type)) return type;
  return std::nullopt;
}

constexpr const char* kTorchFile = "pytorch_model.bin";

std::string weights_of_folder(const std::string& folder) {
  std::error_code unreadable;  // counts as not there
  for (const char* name : {"model.safetensors", kTorchFile})
    if (const fs::path file = fs::path(folder) / name; fs::exists(file, unreadable)) return file.string();
  throw CheckError(cat(folder, ": a head's folder has config.json, and model.safetensors or ", kTorchFile));
}

// Whatever holds them.
SafetensorsContents read_weights(const std::string& path, std::span<const std::byte> bytes) {
  if (path.ends_with(kTorchFile)) return {.metadata = {}, .tensors = read_torch_file(bytes)};
  return read_safetensors_contents(bytes);
}

// A file's tensors, each to be asked for once.
class HeadTensors {
 public:
  HeadTensors(const std::string& path, std::vector<NamedTensor> tensors) : path_(path), tensors_(std::move(tensors)) {}

  void set_types(const json& types) {
    for (const auto& [name, type] : types.items()) {
      check(type.is_string(), path_, ": types: ", in_quotes(name), " is not a type but ", type.type_name());
      const auto* tensor = find(name);
      check(tensor && tensor->dtype == "U8", path_, ": types names ", in_quotes(name), ", which is no tensor of U8");
      const auto said = type.get<std::string>();
      types_.emplace(name, errors_about(path_, [&] { return blocks_named(said); }));
    }
  }

  FileTensor vector(const std::string& name, int64_t size) {
    const auto& tensor = require(name);
    const auto type = dense_type(tensor.dtype);
    check(type.has_value(), path_, ": the tensor ", name, " is ", tensor.dtype,
          ", where only F32, F16 and BF16 can stand");
    check_dims(tensor, {size});
    return {name, *type, {size}, tensor.data};
  }
  FileTensor matrix(const std::string& name, int64_t outputs, int64_t inputs) {
    const auto& tensor = require(name);
    const auto blocks = types_.find(name);
    const auto type = blocks != types_.end() ? blocks->second : dense_type(tensor.dtype);
    check(type.has_value(), path_, ": the tensor ", name, " is ", tensor.dtype,
          ", where only F32, F16, BF16 and blocks that types names can stand");
    if (blocks != types_.end())
      check_dims(tensor,
                 {outputs, errors_about(cat(path_, ": the tensor ", name), [&] { return bytes_of(*type, inputs); })});
    else
      check_dims(tensor, {outputs, inputs});
    return {name, *type, {outputs, inputs}, tensor.data};
  }
  std::vector<int64_t> integers(const std::string& name, int64_t size) {
    const auto& tensor = require(name);
    check(tensor.dtype == "I64" || tensor.dtype == "I32", path_, ": the tensor ", name, " is ", tensor.dtype,
          ", not I64 or I32");
    check_dims(tensor, {size});
    std::vector<int64_t> numbers(static_cast<size_t>(size));
    const size_t bytes = tensor.dtype == "I64" ? 8 : 4;
    for (size_t i = 0; i < numbers.size(); ++i) {
      int32_t narrow;
      if (bytes == 8)
        std::memcpy(&numbers[i], tensor.data.data() + i * bytes, bytes);
      else
        std::memcpy(&narrow, tensor.data.data() + i * bytes, bytes), numbers[i] = narrow;
    }
    return numbers;
  }
  bool has(const std::string& name) const { return find(name) != nullptr; }
  void ignore(const std::string& name) { asked_.insert(name); }
  void check_all_used() const {
    for (const auto& tensor : tensors_)
      check(asked_.contains(tensor.name), path_, ": the tensor ", in_quotes(tensor.name), " is not part of a head");
  }

 private:
  const NamedTensor* find(const std::string& name) const {
    for (const auto& tensor : tensors_)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }
  const NamedTensor& require(const std::string& name) {
    asked_.insert(name);
    const auto* tensor = find(name);
    check(tensor != nullptr, path_, ": the tensor ", name, " is missing");
    return *tensor;
  }
  void check_dims(const NamedTensor& tensor, const Dims& dims) const {
    check(tensor.dims == dims, path_, ": the tensor ", tensor.name, " is ", shape_text(tensor.dims), ", not ",
          shape_text(dims));
  }

  const std::string& path_;
  std::vector<NamedTensor> tensors_;
  std::map<std::string, BlockType> types_;
  std::set<std::string> asked_;
};

// Of the draft vocabulary's tokens, the ids in the target's.
std::vector<int32_t> ids_of(const std::vector<int64_t>& offsets, int32_t vocabulary, const std::string& path) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < std::ssize(offsets); ++i) {
    const bool inside = offsets[i] >= -i && offsets[i] < vocabulary - i;
    check(inside, path, ": d2t[", i, "] = ", offsets[i], " leads out of the vocabulary of ", vocabulary);
    ids.push_back(static_cast<int32_t>(i + offsets[i]));
    check(i == 0 || ids[i] > ids[i - 1], path, ": d2t[", i, "] = ", offsets[i], " means token ", ids[i],
          ", which does not come after token ", ids[i - 1]);
  }
  return ids;
}

}  // namespace

struct EagleHead::Impl {
  Impl(const std::string& at, const Model& target, Exec& exec);

  void load(HeadTensors& tensors, bool own, Exec& exec);
  Vector numbers(const FileTensor& tensor, Exec& exec) const;
  PackedMatrix packed(std::initializer_list<FileTensor> tensors, PackedMatrix::Join join, Exec& exec);
  PackedMatrix columns(std::initializer_list<FileTensor> tensors, int64_t first, Exec& exec);
  PackedMatrix packed(std::vector<WeightView> views, PackedMatrix::Join join, const std::string& about, Exec& exec);

  std::string path;
  MappedFile file;  // stays mapped for an embedding of its own
  EagleSpec spec{};
  FeatureProjection features{};
  WeightView embedding;
  Buffer embedding_copy;  // of a GPU, of one of its own
  Vector embedding_norm;
  PackedMatrix qkv_of_embedding;
  LayerWeights layer;
  Vector output_norm;
  PackedMatrix output;
  std::vector<int32_t> token_ids;
  DeviceArray<int32_t> ids_on_device;
  ops::RopeTable rope;
  Vector rope_frequencies;
  size_t weight_bytes = 0;
};

EagleHead::Impl::Impl(const std::string& at, const Model& target, Exec& exec)
    : path(at), embedding(target.embedding()) {
  std::error_code unreadable;  // which opening it will tell
  const bool is_folder = fs::is_directory(path, unreadable);
  const std::string weights = is_folder ? weights_of_folder(path) : path;
  file = MappedFile(weights);
  SafetensorsContents contents = errors_about(weights, [&] { return read_weights(weights, file.bytes()); });
  HeadTensors tensors(weights, std::move(contents.tensors));
  if (is_folder) {
    const std::string config = (fs::path(path) / "config.json").string();
    spec = read_folder_config(read_json_file(config, kMostHeadConfigBytes, kHeadConfigLimits), target, config);
  } else {
    const json metadata(contents.metadata);
    errors_about(path, [&] {
      check(optional_field(metadata, "format") == "quire-eagle-head",
            "is not a head: its format is not quire-eagle-head");
      check_known(metadata, {"format", "version", "config", "types", "notes"}, "__metadata__");
      check(text_field(metadata, "version") == "1", "has version ", in_quotes(text_field(metadata, "version")),
            " of the format; quire reads version 1");
    });
    const auto parsed = [&](const char* key) {
      return errors_about(cat(path, ": ", key),
                          [&] { return parse_strict_json(text_field(metadata, key), kHeadConfigLimits); });
    };
    spec = read_own_config(parsed("config"), target, path);
    tensors.set_types(parsed("types"));
  }
  rope = errors_about(path, [&] { return ops::rope_table(spec.rope.rotary, spec.rope.theta, spec.rope.scaling); });
  rope_frequencies = Vector(rope.inverse_frequency, exec);
  load(tensors, !is_folder, exec);
  ids_on_device = DeviceArray<int32_t>(token_ids, exec);
}

void EagleHead::Impl::load(HeadTensors& tensors, bool own, Exec& exec) {
  using Join = PackedMatrix::Join;
  const int64_t width = spec.width;
  const AttentionSpec& heads = spec.layer.attention;
  features.layers = spec.feature_layers;
  features.norm_eps = spec.norm_eps;
  const FileTensor fc = tensors.matrix("fc.weight", width, kFeatures * width);
  for (int32_t i = 0; i < kFeatures; ++i) {
    if (spec.norm_features) features.norms[i] = numbers(tensors.vector(cat("fc_norm.", i, ".weight"), width), exec);
    features.matrix[i] = columns({fc}, i * width, exec);
  }
  const auto norm = [&](const char* name) { return numbers(tensors.vector(name, width), exec); };
  embedding_norm = norm("midlayer.input_layernorm.weight");
  layer.attention_norm = norm("midlayer.hidden_norm.weight");
  layer.ffn_norm = norm("midlayer.post_attention_layernorm.weight");
  const FileTensor q = tensors.matrix("midlayer.self_attn.q_proj.weight", heads.q_width(), 2 * width),
                   k = tensors.matrix("midlayer.self_attn.k_proj.weight", heads.k_width(), 2 * width),
                   v = tensors.matrix("midlayer.self_attn.v_proj.weight", heads.v_width(), 2 * width);
  qkv_of_embedding = columns({q, k, v}, 0, exec);
  layer.qkv = columns({q, k, v}, width, exec);
  layer.attention_out =
      packed({tensors.matrix("midlayer.self_attn.o_proj.weight", width, heads.out_width())}, Join::stack, exec);
  const int64_t ffn = spec.layer.feed_forward.width;
  layer.gate_and_up = packed({tensors.matrix("midlayer.mlp.gate_proj.weight", ffn, width),
                              tensors.matrix("midlayer.mlp.up_proj.weight", ffn, width)},
                             Join::gate_and_up, exec);
  layer.down = packed({tensors.matrix("midlayer.mlp.down_proj.weight", width, ffn)}, Join::stack, exec);
  output_norm = norm("norm.weight");
  output = packed({tensors.matrix("lm_head.weight", spec.draft_vocabulary, width)}, Join::stack, exec);
  // Without a draft vocabulary of its own a folder may have no map.
  if (own || tensors.has("d2t") || spec.draft_vocabulary < spec.vocabulary)
    token_ids = ids_of(tensors.integers("d2t", spec.draft_vocabulary), spec.vocabulary, path);
  else
    for (int32_t id = 0; id < spec.vocabulary; ++id) token_ids.push_back(id);
  if (!own) tensors.ignore("t2d");
  if (!own && tensors.has("embed_tokens.weight")) {
    const FileTensor table = tensors.matrix("embed_tokens.weight", spec.vocabulary, width);
    embedding = {.type = table.type, .data = table.data.data(), .outputs = spec.vocabulary, .inputs = width};
    if (exec.device() == Device::cuda) {
      embedding_copy = copied_to_device(table.data, exec);
      embedding.data = embedding_copy.data();
    }
  }
  tensors.check_all_used();
}

Vector EagleHead::Impl::numbers(const FileTensor& tensor, Exec& exec) const {
  std::vector<float> numbers(static_cast<size_t>(tensor.dims[0]));
  dequantise(tensor.type, tensor.data.data(), numbers);
  return {numbers, exec};
}

PackedMatrix EagleHead::Impl::packed(std::initializer_list<FileTensor> tensors, PackedMatrix::Join join, Exec& exec) {
  std::vector<WeightView> views;
  for (const FileTensor& tensor : tensors)
    views.push_back(
        {.type = tensor.type, .data = tensor.data.data(), .outputs = tensor.dims[0], .inputs = tensor.dims[1]});
  return packed(views, join, cat(path, ": the tensor ", tensors.begin()->name), exec);
}

// A GPU has a head in bf16: that is small, and with the rows of several requests multiplied in half the time of blocks.
PackedMatrix EagleHead::Impl::packed(std::vector<WeightView> views, PackedMatrix::Join join, const std::string& about,
                                     Exec& exec) {
  std::vector<std::vector<uint16_t>> widened;
  for (WeightView& view : views) {
    if (exec.device() == Device::cpu) break;
    std::vector<uint16_t>& rows = widened.emplace_back(static_cast<size_t>(view.outputs * view.inputs));
    for (int64_t i = 0; i < view.outputs; ++i) ops::read_bf16_row(view, i, rows.data() + i * view.inputs);
    view = {BlockType::bf16, reinterpret_cast<const std::byte*>(rows.data()), view.outputs, view.inputs};
  }
  PackedMatrix matrix = errors_about(about, [&] { return PackedMatrix(views, join, exec); });
  weight_bytes += matrix.bytes();
  return matrix;
}

// `width` inputs of each, from `first` on.
PackedMatrix EagleHead::Impl::columns(std::initializer_list<FileTensor> tensors, int64_t first, Exec& exec) {
  std::vector<WeightView> views;
  const std::string about = cat(path, ": the tensor ", tensors.begin()->name);
  for (const FileTensor& tensor : tensors) {
    const WeightView whole = {tensor.type, tensor.data.data(), tensor.dims[0], tensor.dims[1]};
    views.push_back(errors_about(about, [&] { return some_inputs(whole, first, spec.width); }));
  }
  return packed(views, PackedMatrix::Join::stack, about, exec);
}

EagleHead::EagleHead(const std::string& path, const Model& target, Exec& exec)
    : impl_(std::make_unique<Impl>(path, target, exec)) {}
EagleHead::~EagleHead() = default;
EagleHead::EagleHead(EagleHead&&) noexcept = default;

const EagleSpec& EagleHead::spec() const { return impl_->spec; }
const FeatureProjection& EagleHead::features() const { return impl_->features; }
const WeightView& EagleHead::embedding() const { return impl_->embedding; }
const Vector& EagleHead::embedding_norm() const { return impl_->embedding_norm; }
const PackedMatrix& EagleHead::qkv_of_embedding() const { return impl_->qkv_of_embedding; }
const LayerWeights& EagleHead::layer() const { return impl_->layer; }
const Vector& EagleHead::output_norm() const { return impl_->output_norm; }
const PackedMatrix& EagleHead::output() const { return impl_->output; }
std::span<const int32_t> EagleHead::token_ids() const { return impl_->token_ids; }
const DeviceArray<int32_t>& EagleHead::ids_on_device() const { return impl_->ids_on_device; }
const ops::RopeTable& EagleHead::rope() const { return impl_->rope; }
const Vector& EagleHead::rope_frequencies() const { return impl_->rope_frequencies; }
size_t EagleHead::weight_bytes() const { return impl_->weight_bytes; }

}  // namespace quire::model
