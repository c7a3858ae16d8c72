#include "model/weights.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::model {
namespace {

using Dims = std::vector<int64_t>;
using SizeOf = int64_t (*)(const ModelConfig&, const LayerSpec&);
using Has = bool (*)(const LayerSpec&);

int64_t width(const ModelConfig& c, const LayerSpec&) { return c.width; }
int64_t q_width(const ModelConfig&, const LayerSpec& s) { return s.attention.q_width(); }
int64_t k_width(const ModelConfig&, const LayerSpec& s) { return s.attention.k_width(); }
int64_t v_width(const ModelConfig&, const LayerSpec& s) { return s.attention.v_width(); }
int64_t out_width(const ModelConfig&, const LayerSpec& s) { return s.attention.out_width(); }
int64_t ffn_width(const ModelConfig&, const LayerSpec& s) { return s.feed_forward.width; }
int64_t q_norm_width(const ModelConfig&, const LayerSpec& s) {
  return s.attention.qk_norm == QkNorm::whole_row ? s.attention.q_width() : s.attention.key_dim;
}
int64_t k_norm_width(const ModelConfig&, const LayerSpec& s) {
  return s.attention.qk_norm == QkNorm::whole_row ? s.attention.k_width() : s.attention.key_dim;
}

bool always(const LayerSpec&) { return true; }
bool biased(const LayerSpec& s) { return s.attention.qkv_bias; }
bool qk_normed(const LayerSpec& s) { return s.attention.qk_norm != QkNorm::none; }
bool normed_before(const LayerSpec& s) { return s.norm_before; }
bool normed_after(const LayerSpec& s) { return s.norm_after; }

// Every tensor of a layer: GGUF's name after "blk.N.", Hugging Face's after "model.layers.N.". All families here use
// the same names and differ in which of the tensors they have.
struct LayerRow {
  const FileTensor* LayerTensors::*where;
  const char* gguf;
  const char* folder;
  Has has;
  SizeOf outputs;
  SizeOf inputs = nullptr;  // null: a vector
};
using Layer = LayerTensors;
constexpr LayerRow kLayerRows[] = {
    {&Layer::attention_norm, "attn_norm.weight", "input_layernorm.weight", normed_before, width},
    {&Layer::q, "attn_q.weight", "self_attn.q_proj.weight", always, q_width, width},
    {&Layer::k, "attn_k.weight", "self_attn.k_proj.weight", always, k_width, width},
    {&Layer::v, "attn_v.weight", "self_attn.v_proj.weight", always, v_width, width},
    {&Layer::q_bias, "attn_q.bias", "self_attn.q_proj.bias", biased, q_width},
    {&Layer::k_bias, "attn_k.bias", "self_attn.k_proj.bias", biased, k_width},
    {&Layer::v_bias, "attn_v.bias", "self_attn.v_proj.bias", biased, v_width},
    {&Layer::q_norm, "attn_q_norm.weight", "self_attn.q_norm.weight", qk_normed, q_norm_width},
    {&Layer::k_norm, "attn_k_norm.weight", "self_attn.k_norm.weight", qk_normed, k_norm_width},
    {&Layer::attention_out, "attn_output.weight", "self_attn.o_proj.weight", always, width, out_width},
    {&Layer::attention_post_norm, "post_attention_norm.weight", "post_attention_layernorm.weight", normed_after, width},
    {&Layer::ffn_norm, "ffn_norm.weight", "post_attention_layernorm.weight", normed_before, width},
    {&Layer::gate, "ffn_gate.weight", "mlp.gate_proj.weight", always, ffn_width, width},
    {&Layer::up, "ffn_up.weight", "mlp.up_proj.weight", always, ffn_width, width},
    {&Layer::down, "ffn_down.weight", "mlp.down_proj.weight", always, width, ffn_width},
    {&Layer::ffn_post_norm, "post_ffw_norm.weight", "post_feedforward_layernorm.weight", normed_after, width},
};

std::string text_of(const Dims& dims) {
  std::string text = "[";
  for (const int64_t dim : dims) text += cat(text.size() > 1 ? ", " : "", dim);
  return text + "]";
}

int64_t elements_of(const FileTensor* tensor) {
  if (!tensor) return 0;
  int64_t count = 1;
  for (const int64_t dim : tensor->dims) count *= dim;
  return count;
}

bool is_dense(BlockType type) { return type == BlockType::f32 || type == BlockType::f16 || type == BlockType::bf16; }

int64_t blocks_in(int64_t whole, int64_t block) { return (whole + block - 1) / block; }

// Finds tensors by name, checks them, and remembers what was asked for.
class Finder {
 public:
  using Find = std::function<const FileTensor*(std::string_view, const Dims&)>;
  Finder(const std::string& path, Find find) : path_(path), find_(std::move(find)) {}

  const FileTensor* find(const std::string& name, const Dims& dims) {
    asked_.insert(name);
    const FileTensor* tensor = find_(name, dims);
    if (!tensor) return nullptr;
    check(tensor->dims == dims, path_, ": the tensor ", name, " is ", text_of(tensor->dims), ", not ", text_of(dims));
    check(dims.size() > 1 || is_dense(tensor->type), path_, ": the tensor ", name, " is ", to_string(tensor->type),
          ", where only F32, F16 and BF16 can stand");
    return tensor;
  }
  const FileTensor* require(const std::string& name, const Dims& dims) {
    const FileTensor* tensor = find(name, dims);
    check(tensor != nullptr, path_, ": the tensor ", name, " is missing");
    return tensor;
  }
  void use(const std::string& name) { asked_.insert(name); }
  void check_all_used(const std::vector<FileTensor>& tensors) const {
    for (const FileTensor& tensor : tensors)
      check(asked_.contains(tensor.name) || is_spare(tensor.name), path_, ": the tensor ", in_quotes(tensor.name),
            " is not part of such a model");
  }

 private:
  // Old folders keep the frequencies of rope, which follow from the configuration; those of F8_E4M3 have scales for
  // activations, keys and values, which stay wider here.
  static bool is_spare(std::string_view name) {
    constexpr std::string_view kSpare[] = {"rotary_emb.inv_freq", ".input_scale", ".k_scale", ".v_scale", ".q_scale"};
    return std::any_of(std::begin(kSpare), std::end(kSpare), [&](std::string_view end) { return name.ends_with(end); });
  }

  const std::string& path_;
  Find find_;
  std::set<std::string> asked_;
};

LayerTensors find_layer(Finder& finder, const ModelConfig& config, bool gguf, int32_t layer) {
  LayerTensors found{};
  const LayerSpec& spec = config.layers[layer];
  const std::string prefix = cat(gguf ? "blk." : "model.layers.", layer, ".");
  for (const LayerRow& row : kLayerRows) {
    if (!row.has(spec)) continue;
    Dims dims = {row.outputs(config, spec)};
    if (row.inputs) dims.push_back(row.inputs(config, spec));
    found.*row.where = finder.require(prefix + (gguf ? row.gguf : row.folder), dims);
  }
  return found;
}

ModelTensors find_tensors(Finder& finder, const ModelConfig& config, bool gguf) {
  const Dims by_token = {config.vocabulary, config.width};
  ModelTensors found{};
  found.embedding = finder.require(gguf ? "token_embd.weight" : "model.embed_tokens.weight", by_token);
  if (gguf) found.rope_factors = finder.find("rope_freqs.weight", {config.ropes.front().rotary / 2});
  for (int32_t layer = 0; layer < config.layer_count(); ++layer)
    found.layers.push_back(find_layer(finder, config, gguf, layer));
  found.output_norm = finder.require(gguf ? "output_norm.weight" : "model.norm.weight", {config.width});
  const std::string output = gguf ? "output.weight" : "lm_head.weight";
  // A tied folder may hold the matrix all the same: it is the embedding again.
  const FileTensor* own_output =
      config.tied_embedding ? finder.find(output, by_token) : finder.require(output, by_token);
  found.output = config.tied_embedding ? found.embedding : own_output;
  return found;
}

}  // namespace

WeightFiles::WeightFiles(const std::string& path, LoadFormat format) : path_(path) {
  const bool is_folder = std::filesystem::is_directory(path);
  check(is_folder || format != LoadFormat::dummy, path,
        ": a model without weights (dummy) is a folder with a config.json");
  if (is_folder) {
    config_ = config_from_folder(path);
    check(format == LoadFormat::dummy || !config_.quantization || !config_.quantization->is_gguf(), path,
          ": quantization_config: a folder has weights of a GGUF file's types only as a dummy");
    if (format == LoadFormat::dummy)
      dummy_.emplace();
    else
      folder_.emplace(path);
  } else {
    gguf_.emplace(path);
    config_ = config_from_gguf(*gguf_);
  }
  Finder finder(path_, [this](std::string_view name, const Dims& dims) { return find(name, dims); });
  tensors_ = find_tensors(finder, config_, gguf_.has_value());
  find_scales();
  for (const auto& [matrix, scales] : tensors_.scales) finder.use(scales.tensor->name);
  if (dummy_)
    dummy_->fill();
  else
    finder.check_all_used(all());
}

const FileTensor* WeightFiles::find(std::string_view name, const Dims& dims) {
  if (dummy_ && config_.quantization && dims.size() > 1)
    return dummy_->make(name, dims, config_.quantization->type_of(name, config_.layer_count()));
  if (dummy_) return dummy_->make(name, dims);
  return gguf_ ? gguf_->tensor(name) : folder_->tensor(name);
}

void WeightFiles::find_scales() {
  const auto add = [&](const FileTensor* matrix) {
    if (matrix && matrix->type == BlockType::f8_e4m3) tensors_.scales.emplace(matrix, scales_of(*matrix));
  };
  check(tensors_.embedding->type != BlockType::f8_e4m3, path_, ": the tensor ", tensors_.embedding->name,
        " is F8_E4M3, which an embedding cannot be");
  for (const LayerTensors& layer : tensors_.layers)
    for (const LayerRow& row : kLayerRows) add(layer.*row.where);
  add(tensors_.output);
}

// By their shape: one number, one for each output, or one for each block. Writers call them by one of two names, and
// mean the same.
ScaleTensor WeightFiles::scales_of(const FileTensor& matrix) {
  using Scales = QuantizationScheme::Scales;
  const QuantizationScheme scheme = config_.quantization.value_or(QuantizationScheme{});
  const int64_t outputs = matrix.dims[0], inputs = matrix.dims[1];
  const Dims by_block = {blocks_in(outputs, scheme.block_outputs), blocks_in(inputs, scheme.block_inputs)};
  const std::string name = matrix.name + "_scale";
  if (dummy_) {
    const bool channels = scheme.scales == Scales::channel, blocks = scheme.scales == Scales::block;
    const Dims dims = blocks ? by_block : Dims{channels ? outputs : 1, 1};
    return {dummy_->make(name, dims, BlockType::f32),
            blocks     ? scheme.block_outputs
            : channels ? 1
                       : outputs,
            blocks ? scheme.block_inputs : inputs};
  }
  const FileTensor* found = folder_->tensor(name + "_inv");
  if (!found) found = folder_->tensor(name);
  check(found != nullptr, path_, ": the tensor ", matrix.name, " is F8_E4M3, and ", name, " is missing");
  check(is_dense(found->type), path_, ": the tensor ", found->name, " is ", to_string(found->type),
        ", where only F32, F16 and BF16 can stand");
  if (elements_of(found) == 1) return {found, outputs, inputs};
  if (found->dims == Dims{outputs} || found->dims == Dims{outputs, 1}) return {found, 1, inputs};
  check(found->dims == by_block, path_, ": the tensor ", found->name, " is ", text_of(found->dims),
        ", which is neither a number, nor one for each of ", outputs, " outputs, nor ", text_of(by_block));
  return {found, scheme.block_outputs, scheme.block_inputs};
}

const std::vector<FileTensor>& WeightFiles::all() const { return gguf_ ? gguf_->tensors() : folder_->tensors(); }

int64_t WeightFiles::parameters() const {
  int64_t count = elements_of(tensors_.embedding) + elements_of(tensors_.output_norm);
  if (tensors_.output != tensors_.embedding) count += elements_of(tensors_.output);
  for (const LayerTensors& layer : tensors_.layers)
    for (const LayerRow& row : kLayerRows) count += elements_of(layer.*row.where);
  return count;
}

uint64_t WeightFiles::fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](const FileTensor* norm) {
    if (!norm) return;
    std::vector<float> numbers(static_cast<size_t>(norm->dims[0]));
    dequantise(norm->type, norm->data.data(), numbers);
    for (const std::byte byte : std::as_bytes(std::span(numbers)))
      hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3u;
  };
  for (const LayerTensors& layer : tensors_.layers)
    for (const FileTensor* norm :
         {layer.attention_norm, layer.attention_post_norm, layer.ffn_norm, layer.ffn_post_norm})
      add(norm);
  add(tensors_.output_norm);
  return hash;
}

void WeightFiles::forget(const FileTensor& tensor) const {
  if (dummy_) return;
  if (gguf_) return gguf_->file().forget(tensor.data);
  for (const MappedFile& file : folder_->files()) {
    const auto bytes = file.bytes();
    const bool inside = std::less_equal<>()(bytes.data(), tensor.data.data()) &&
                        std::less<>()(tensor.data.data(), bytes.data() + bytes.size());
    if (inside) file.forget(tensor.data);
  }
}

}  // namespace quire::model
