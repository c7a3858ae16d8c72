// What a model is, whatever kind of file says so: globals, and one spec a layer. The forward pass and the reader of
// weights look at nothing else; a family (family.h) turns a file's keys into it.
//
// Errors   CheckError, one line that names the file, the key and the value: an architecture quire does not know, a
//          missing key, a count out of range, shapes that contradict each other, a spec that nobody computes yet.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/step.h"
#include "base/gguf.h"
#include "model/quantization.h"
#include "ops/rope.h"

namespace quire::model {

// One table of angles, shared by the layers that name it.
struct RopeSpec {
  int32_t rotary;       // rotated dims of a head
  bool adjacent_pairs;  // as llama's GGUF files have them; else halves
  double theta;
  ops::RopeScaling scaling;
};

enum class QkNorm : uint8_t {
  none,
  per_head,  // each head by itself, one weight for all (Qwen3)
  whole_row  // all heads of a row together, a weight for each number (OLMo 2)
};

struct AttentionSpec {
  attn::LayerKind kind = attn::LayerKind::full;  // which page table; a window over it is below
  int32_t heads;
  int32_t kv_heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t rope = 0;     // which of ModelConfig::ropes; -1: none
  float scale;          // of the dots of queries and keys
  int32_t window = -1;  // tokens before its own that a row sees; -1: all
  QkNorm qk_norm = QkNorm::none;
  bool qkv_bias = false;
  float softcap = 0;  // 0: none. It, sinks and latent are refused: no family that is read here has them
  bool sinks = false;
  int32_t latent_rank = 0;  // 0: keys and values by head

  int64_t q_width() const { return int64_t{heads} * key_dim; }
  int64_t k_width() const { return int64_t{kv_heads} * key_dim; }
  int64_t v_width() const { return int64_t{kv_heads} * value_dim; }
  int64_t qkv_width() const { return q_width() + k_width() + v_width(); }
  int64_t out_width() const { return int64_t{heads} * value_dim; }
};

struct FeedForwardSpec {
  int32_t width;  // silu(gate) * up, then down
};

// x += residual_scale * after(attention(before(x))), then the same with the feed-forward half.
struct LayerSpec {
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
  bool norm_before = true;  // RMS norms of both halves' inputs
  bool norm_after = false;  // and of their results, before they are added (OLMo 2)
  float residual_scale = 1;
};

struct ModelConfig {
  std::string architecture;  // one of the families'
  std::string name;          // for people
  int32_t width;             // of the residual stream
  int32_t vocabulary;
  int32_t context;  // most tokens of a text that it is made for
  float norm_eps;
  bool tied_embedding = false;  // the output matrix is the embedding
  float embedding_scale = 1;    // of a token's row, when it enters the residual stream
  float logits_scale = 1;
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;                   // all of one attention shape: the store of keys and values has one
  std::optional<QuantizationScheme> quantization;  // of a folder; a GGUF file's tensors say it themselves

  int32_t layer_count() const { return static_cast<int32_t>(layers.size()); }
  const AttentionSpec& attention() const { return layers.front().attention; }  // for its shape
  int32_t ffn_width() const;                                                   // the widest layer's
  int64_t kv_elements() const;  // keys and values of one token, in all layers
};
std::string to_string(const ModelConfig& config);  // one line for people

ModelConfig config_from_gguf(const GgufFile& file);
ModelConfig config_from_folder(const std::string& folder);  // config.json
// How counts must fit together, and what is computed, whatever file they come from. Both of the above ask it.
void check_config(const ModelConfig& config, std::string_view file);

// The bounds of every count: what is larger is a broken file, not a model.
inline constexpr int32_t kMostLayers = 1000;
inline constexpr int32_t kMostWidth = 1 << 17;  // of the residual stream, and of all heads together
inline constexpr int32_t kMostFfnWidth = 1 << 20;
inline constexpr int32_t kMostHeads = 1024;
inline constexpr int32_t kLeastHeadDim = 16, kMostHeadDim = 256;  // attention takes the multiples of the least
inline constexpr int32_t kMostVocabulary = 1 << 20;
inline constexpr int32_t kMostContext = 1 << 26;

inline bool is_head_dim(int32_t dim) { return dim > 0 && dim <= kMostHeadDim && dim % kLeastHeadDim == 0; }

}  // namespace quire::model
