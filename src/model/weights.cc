#include "model/weights.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::model {
namespace {

using Dims = std::vector<int64_t>;
using DimsOf = Dims (*)(const ModelConfig&, const LayerSpec&);
using Has = bool (*)(const LayerSpec&);

Dims by_width(const ModelConfig& c, const LayerSpec&) { return {c.width}; }
Dims q_row(const ModelConfig&, const LayerSpec& s) { return {s.attention.q_width()}; }
Dims k_row(const ModelConfig&, const LayerSpec& s) { return {s.attention.k_width()}; }
Dims v_row(const ModelConfig&, const LayerSpec& s) { return {s.attention.v_width()}; }
Dims q_norm(const ModelConfig&, const LayerSpec& s) {
  return {s.attention.qk_norm == QkNorm::whole_row ? s.attention.q_width() : s.attention.key_dim};
}
Dims k_norm(const ModelConfig&, const LayerSpec& s) {
  return {s.attention.qk_norm == QkNorm::whole_row ? s.attention.k_width() : s.attention.key_dim};
}
Dims queries(const ModelConfig& c, const LayerSpec& s) { return {s.attention.q_width(), c.width}; }
Dims keys(const ModelConfig& c, const LayerSpec& s) { return {s.attention.k_width(), c.width}; }
Dims values(const ModelConfig& c, const LayerSpec& s) { return {s.attention.v_width(), c.width}; }
Dims from_heads(const ModelConfig& c, const LayerSpec& s) { return {c.width, s.attention.out_width()}; }
Dims into_ffn(const ModelConfig& c, const LayerSpec& s) { return {s.feed_forward.width, c.width}; }
Dims from_ffn(const ModelConfig& c, const LayerSpec& s) { return {c.width, s.feed_forward.width}; }

bool always(const LayerSpec&) { return true; }
bool with_bias(const LayerSpec& s) { return s.attention.qkv_bias; }
bool with_qk_norm(const LayerSpec& s) { return s.attention.qk_norm != QkNorm::none; }
bool normed_before(const LayerSpec& s) { return s.norm_before; }
bool normed_after(const LayerSpec& s) { return s.norm_after; }

// Every tensor of a layer: GGUF's name after "blk.N.", Hugging Face's after "model.layers.N.". All families here use
// the same names and differ in which of the tensors they have.
struct LayerRow {
  const FileTensor* LayerTensors::*where;
  const char* gguf;
  const char* folder;
  DimsOf dims;
  Has has;
};
constexpr LayerRow kLayerRows[] = {
    {&LayerTensors::attention_norm, "attn_norm.weight", "input_layernorm.weight", by_width, normed_before},
    {&LayerTensors::q, "attn_q.weight", "self_attn.q_proj.weight", queries, always},
    {&LayerTensors::k, "attn_k.weight", "self_attn.k_proj.weight", keys, always},
    {&LayerTensors::v, "attn_v.weight", "self_attn.v_proj.weight", values, always},
    {&LayerTensors::q_bias, "attn_q.bias", "self_attn.q_proj.bias", q_row, with_bias},
    {&LayerTensors::k_bias, "attn_k.bias", "self_attn.k_proj.bias", k_row, with_bias},
    {&LayerTensors::v_bias, "attn_v.bias", "self_attn.v_proj.bias", v_row, with_bias},
    {&LayerTensors::q_norm, "attn_q_norm.weight", "self_attn.q_norm.weight", q_norm, with_qk_norm},
    {&LayerTensors::k_norm, "attn_k_norm.weight", "self_attn.k_norm.weight", k_norm, with_qk_norm},
    {&LayerTensors::attention_out, "attn_output.weight", "self_attn.o_proj.weight", from_heads, always},
    {&LayerTensors::attention_post_norm, "post_attention_norm.weight", "post_attention_layernorm.weight", by_width,
     normed_after},
    {&LayerTensors::ffn_norm, "ffn_norm.weight", "post_attention_layernorm.weight", by_width, normed_before},
    {&LayerTensors::gate, "ffn_gate.weight", "mlp.gate_proj.weight", into_ffn, always},
    {&LayerTensors::up, "ffn_up.weight", "mlp.up_proj.weight", into_ffn, always},
    {&LayerTensors::down, "ffn_down.weight", "mlp.down_proj.weight", from_ffn, always},
    {&LayerTensors::ffn_post_norm, "post_ffw_norm.weight", "post_feedforward_layernorm.weight", by_width, normed_after},
};

std::string text_of(const Dims& dims) {
  std::string text = "[";
  for (const int64_t dim : dims) text += cat(text.size() > 1 ? ", " : "", dim);
  return text + "]";
}

bool is_dense(BlockType type) { return type == BlockType::f32 || type == BlockType::f16 || type == BlockType::bf16; }

// Finds tensors by name, checks them, and remembers what was asked for.
class Finder {
 public:
  using Find = std::function<const FileTensor*(std::string_view)>;
  Finder(const std::string& path, Find find) : path_(path), find_(std::move(find)) {}

  const FileTensor* find(const std::string& name, const Dims& dims) {
    asked_.insert(name);
    const FileTensor* tensor = find_(name);
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
  // Old folders keep the frequencies of rope, which follow from the configuration.
  void check_all_used(const std::vector<FileTensor>& tensors) const {
    for (const FileTensor& tensor : tensors)
      check(asked_.contains(tensor.name) || tensor.name.ends_with("rotary_emb.inv_freq"), path_, ": the tensor ",
            in_quotes(tensor.name), " is not part of such a model");
  }

 private:
  const std::string& path_;
  Find find_;
  std::set<std::string> asked_;
};

LayerTensors find_layer(Finder& finder, const ModelConfig& config, bool gguf, int32_t layer) {
  LayerTensors found{};
  const LayerSpec& spec = config.layers[layer];
  const std::string prefix = cat(gguf ? "blk." : "model.layers.", layer, ".");
  for (const LayerRow& row : kLayerRows)
    if (row.has(spec))
      found.*row.where = finder.require(prefix + (gguf ? row.gguf : row.folder), row.dims(config, spec));
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

WeightFiles::WeightFiles(const std::string& path) : path_(path) {
  if (std::filesystem::is_directory(path)) {
    config_ = config_from_folder(path);
    folder_.emplace(path);
  } else {
    gguf_.emplace(path);
    config_ = config_from_gguf(*gguf_);
  }
  Finder finder(path_, [this](std::string_view name) { return gguf_ ? gguf_->tensor(name) : folder_->tensor(name); });
  tensors_ = find_tensors(finder, config_, gguf_.has_value());
  finder.check_all_used(all());
}

const std::vector<FileTensor>& WeightFiles::all() const { return gguf_ ? gguf_->tensors() : folder_->tensors(); }

void WeightFiles::forget(const FileTensor& tensor) const {
  if (gguf_) return gguf_->file().forget(tensor.data);
  for (const MappedFile& file : folder_->files()) {
    const auto bytes = file.bytes();
    const bool inside = std::less_equal<>()(bytes.data(), tensor.data.data()) &&
                        std::less<>()(tensor.data.data(), bytes.data() + bytes.size());
    if (inside) file.forget(tensor.data);
  }
}

}  // namespace quire::model
