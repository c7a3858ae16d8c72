// A model's tensors, found in its files: the one place that knows what each is called, what shape it has and which of
// them a model has at all.
//
// Errors   CheckError that names the file and the tensor: missing, of the wrong shape, of a type that cannot stand
//          there, or not part of the model: a tensor that is not used would mean a model that is computed wrongly.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file_tensor.h"
#include "base/gguf.h"
#include "base/safetensors.h"
#include "model/config.h"
#include "model/dummy_tensors.h"

namespace quire::model {

// In the order of use; null where the model has none.
struct LayerTensors {
  const FileTensor* attention_norm;  // [width]
  const FileTensor *q, *k, *v;       // [heads * head_dim, width], [kv_heads * head_dim, width] twice
  const FileTensor *q_bias, *k_bias, *v_bias;
  const FileTensor *q_norm, *k_norm;      // [head_dim], or [heads * head_dim] and [kv_heads * head_dim]
  const FileTensor* attention_out;        // [width, heads * head_dim]
  const FileTensor* attention_post_norm;  // [width]
  const FileTensor* ffn_norm;             // [width]
  const FileTensor *gate, *up;            // [ffn_width, width]
  const FileTensor* down;                 // [width, ffn_width]
  const FileTensor* ffn_post_norm;        // [width]
};

// What a matrix of F8_E4M3 is multiplied by, one number for each block.
struct ScaleTensor {
  const FileTensor* tensor;
  int64_t block_outputs, block_inputs;
};

struct ModelTensors {
  const FileTensor* embedding;     // [vocabulary, width]
  const FileTensor* rope_factors;  // [rotary / 2]; GGUF files only; null: none
  std::vector<LayerTensors> layers;
  const FileTensor* output_norm;                    // [width]
  const FileTensor* output;                         // [vocabulary, width]; the embedding itself when it is tied
  std::map<const FileTensor*, ScaleTensor> scales;  // of every matrix of F8_E4M3
};

enum class LoadFormat : uint8_t {
  automatic,  // as the files are
  dummy,      // a folder's config.json alone: numbers that mean nothing, quantised as it says (quantization.h)
};

class WeightFiles {
 public:
  // A GGUF file, or a Hugging Face folder.
  explicit WeightFiles(const std::string& path, LoadFormat format = LoadFormat::automatic);

  const std::string& path() const { return path_; }
  const ModelConfig& config() const { return config_; }
  const ModelTensors& tensors() const { return tensors_; }  // all of them checked
  int64_t parameters() const;
  // Of the norms, which are the same numbers in whatever types a file has the matrices: docs/speculation.md says how.
  uint64_t fingerprint() const;
  void forget(const FileTensor& tensor) const;  // hands its pages back to the system

 private:
  const FileTensor* find(std::string_view name, const std::vector<int64_t>& dims);
  void find_scales();
  ScaleTensor scales_of(const FileTensor& matrix);
  const std::vector<FileTensor>& all() const;

  std::string path_;
  std::optional<GgufFile> gguf_;  // one of the three
  std::optional<SafetensorsFolder> folder_;
  std::optional<DummyTensors> dummy_;
  ModelConfig config_;
  ModelTensors tensors_;
};

}  // namespace quire::model
