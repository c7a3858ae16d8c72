// An EAGLE head: one layer that guesses the next tokens of a text from features of the target, the model that is
// served. docs/speculation.md says what it computes, and what its file is.
//
// Two kinds of file: quire's own, one safetensors file that names its target and may be quantised; and a folder as
// SpecForge or EAGLE write it (config.json with the architecture LlamaForCausalLMEagle3; model.safetensors, or
// pytorch_model.bin), dense.
//
// Products over joined inputs, [ embedding | state ] and the three features, are kept as one matrix for each part: the
// parts come at different times, and need not be copied together.
//
// Errors   CheckError, one line that names the file: for another target, an unknown or missing key or tensor, a shape
//          or type that does not fit, a draft vocabulary that is not part of the target's.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/exec.h"
#include "model/config.h"
#include "model/feature_projection.h"
#include "model/model.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace quire::model {

struct EagleSpec {
  std::array<int32_t, FeatureProjection::kFeatures> feature_layers;
  int32_t width;             // the target's
  int32_t vocabulary;        // the target's
  int32_t draft_vocabulary;  // that it guesses from
  LayerSpec layer;
  RopeSpec rope;
  float norm_eps;
  bool norm_features;
  bool norm_output;       // what a draft hands on to the next is normed
  float temperature = 1;  // that logits are divided by
};

class EagleHead {
 public:
  // The target outlives it; exec is the one that the target was loaded for.
  EagleHead(const std::string& path, const Model& target, Exec& exec);
  ~EagleHead();
  EagleHead(EagleHead&&) noexcept;

  const EagleSpec& spec() const;
  const FeatureProjection& features() const;
  const ops::WeightView& embedding() const;           // the target's, or a folder's own; the device's
  const Vector& embedding_norm() const;               // [width]
  const ops::PackedMatrix& qkv_of_embedding() const;  // beside layer().qkv, which is of the state
  const LayerWeights& layer() const;                  // attention_norm is the state's
  const Vector& output_norm() const;                  // [width]
  const ops::PackedMatrix& output() const;            // draft vocabulary x width
  std::span<const int32_t> token_ids() const;         // [draft vocabulary] of the target's vocabulary, ascending
  const DeviceArray<int32_t>& ids_on_device() const;  // the same
  const ops::RopeTable& rope() const;                 // of spec().rope
  const Vector& rope_frequencies() const;             // its, for the device
  size_t weight_bytes() const;                        // packed matrices

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::model
