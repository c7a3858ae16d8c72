// For tests: heads of random numbers, written to files, each tensor and key of which may be changed or left out.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/blocks.h"
#include "model/model.h"

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
  // As SpecForge lays it out: names of layers are those of their outputs.
  std::string write_folder(const std::string& folder, const nlohmann::json& changes = nlohmann::json::object()) const;

 private:
  std::string bytes(const nlohmann::json& notes) const;
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

}  // namespace quire::model::testing
