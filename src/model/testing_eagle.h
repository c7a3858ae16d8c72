// For tests: heads of random numbers, written to files, each tensor and key of which may be changed or left out.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/blocks.h"
#include "base/exec.h"
#include "kv/page_pool.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/draft_forward.h"
#include "model/eagle_head.h"
#include "model/model.h"
#include "model/testing.h"

namespace quire::model::testing {

class HeadWriter {
 public:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> dims;
    std::vector<std::byte> data;
  };
  std::map<std::string, Tensor> tensors;
  nlohmann::json config;  // quire's own
  nlohmann::json types = nlohmann::json::object();
  std::map<std::string, std::string> metadata;  // beside these two, which write_file() adds
  void set_vector(const std::string& name, const std::vector<float>& numbers);
  void set_matrix(const std::string& name, int64_t outputs, const std::vector<float>& numbers);
  void set_tokens(const std::vector<int32_t>& ids);  // d2t

  std::string write_file(const std::string& path) const;  // returns the path
  // As SpecForge lays it out, or as EAGLE does, by torch.save: names of layers are those of their outputs.
  enum class Weights { safetensors, torch };
  std::string write_folder(const std::string& folder, const nlohmann::json& changes = nlohmann::json::object(),
                           Weights weights = Weights::safetensors) const;

 private:
  std::string bytes(const nlohmann::json& notes) const;
  std::string torch_bytes() const;
};

struct TinyHead {
  int32_t draft_vocabulary = 96;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 32;
  int32_t ffn_width = 96;
  std::array<int32_t, 3> feature_layers = {0, 1, 2};
  BlockType type = BlockType::f32;  // of the matrices
  bool norm_features = true;
  bool norm_output = true;
  double temperature = 1;
  float spread = 0.1f;  // of the numbers in matrices
  uint64_t seed = 7;
};
HeadWriter tiny_head(const Model& target, const TinyHead& tiny = {});

// A target that says the next token by the newest alone, and a head that does the same, for such a target on a CPU.
// certain: the spread of the target's matrix.
TinyModel target_without_memory(float certain, int32_t vocabulary = 320);
HeadWriter knowing_head(const Model& target, float certain);

// The same as a file of its own among the system's temporary ones, for as long as the object lives.
class TinyHeadFile {
 public:
  explicit TinyHeadFile(const HeadWriter& writer);
  ~TinyHeadFile();
  TinyHeadFile(const TinyHeadFile&) = delete;
  TinyHeadFile& operator=(const TinyHeadFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One text's slots through a head, in pages of their own, as they are given; all rows are wanted.
class HeadSlots {
 public:
  HeadSlots(const EagleHead& head, Exec& exec, PageSize page_size, Dtype kv_type);
  // The next slots: their tokens, and the states that enter beside them.
  void run(attn::Mode mode, std::span<const int32_t> tokens, std::span<const std::vector<float>> states);
  void cut(int32_t length) { length_ = length; }  // the slots from there on are forgotten
  // Of row i of the last run.
  std::vector<float> logits(int64_t i) const { return row_of(forward_.logits(), i); }
  std::vector<float> state(int64_t i) const { return row_of(forward_.next_states(), i); }

 private:
  static constexpr int32_t kMostTokens = 512;
  static std::vector<float> row_of(Rows<const float> rows, int64_t i) { return {rows.row(i), rows.row(i) + rows.dim}; }

  Exec& exec_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  DraftForward forward_;
  RequestRow row_;
  int32_t length_ = 0;
};

}  // namespace quire::model::testing
