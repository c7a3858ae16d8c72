// A model ready to run: its shape and its weights, packed for this machine. Knows no request, page or batch.
//
// Weights are repacked for exec's device when the model is loaded; the file's pages are then handed back. A CPU reads
// the embedding's rows from the file as tokens need them, a GPU has a copy of it.
//
// Errors   CheckError, one line that names the file and the tensor: missing, of the wrong shape, of a type that
//          cannot stand there.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/device_array.h"
#include "base/exec.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace quire::model {

using Vector = DeviceArray<float>;

struct LayerWeights {
  Vector attention_norm;  // [width]; norms and biases are empty where the spec has none
  ops::PackedMatrix qkv;  // [heads + 2 * kv_heads, head_dim] x width
  Vector qkv_bias;
  Vector q_norm, k_norm;            // [head_dim], or as wide as all heads
  ops::PackedMatrix attention_out;  // width x [heads, head_dim]
  Vector attention_post_norm;
  Vector ffn_norm;
  ops::PackedMatrix gate_and_up;
  ops::PackedMatrix down;
  Vector ffn_post_norm;
};

class Model {
 public:
  // path: a GGUF file, or a Hugging Face folder. progress(done, total) in bytes of weights, from the calling thread.
  using Progress = std::function<void(int64_t done, int64_t total)>;
  Model(const std::string& path, Exec& exec, const Progress& progress = {}, LoadFormat format = LoadFormat::automatic);
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const;
  const std::vector<LayerWeights>& layers() const;
  const Vector& output_norm() const;
  const ops::PackedMatrix& output() const;              // vocabulary x width
  const ops::WeightView& embedding() const;             // in the mapped file, or the GPU's memory
  const std::vector<ops::RopeTable>& ropes() const;     // of config().ropes
  const std::vector<Vector>& rope_frequencies() const;  // theirs, for the device
  Device device() const;                                // that it was loaded for
  size_t weight_bytes() const;                          // packed matrices, what one token reads
  int64_t parameters() const;
  uint64_t fingerprint() const;  // WeightFiles::fingerprint()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Bytes that the weights in these files will take of a GPU's memory: the embedding as the file has it, and matrices by
// the forms in which they lie there (ops/device_bytes.h). Norms and biases, well below a thousandth, are left out.
int64_t device_weight_bytes(const WeightFiles& files);

}  // namespace quire::model
