// For tests: tiny models with random weights, and requests run through a model in any chunks and batches.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/blocks.h"
#include "base/exec.h"
#include "base/graph.h"
#include "kv/page_pool.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/testing_gguf.h"

namespace quire::model::testing {

struct TinyModel {
  std::string architecture = "llama";  // with the tensors and keys of its family
  int32_t layers = 3;
  int32_t width = 64;  // a multiple of the type's block; with heads * head_dim and ffn_width
  int32_t ffn_width = 96;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 16;
  int32_t vocabulary = 320;
  int32_t context = 1024;
  int32_t window = 0;               // 0: none; else tokens that a row sees, itself included
  BlockType type = BlockType::f32;  // of the matrices
  float spread = 0.1f;              // of their numbers
  bool tied = false;
  uint64_t seed = 1;
  std::function<void(GgufWriter&)> change = {};  // before the file is written
};
std::string write_tiny_gguf(const std::string& path, const TinyModel& tiny);  // returns the path

// The same as a file of its own among the system's temporary ones, for as long as the object lives.
class TinyFile {
 public:
  explicit TinyFile(const TinyModel& tiny);
  ~TinyFile();
  TinyFile(const TinyFile&) = delete;
  TinyFile& operator=(const TinyFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Requests with their pages, run through a model step by step. Each step gives the logits of every row.
class Requests {
 public:
  struct Chunk {
    int32_t request;  // any number; a new one begins a text
    std::vector<int32_t> ids;
  };
  using Logits = std::vector<std::vector<float>>;  // [rows]

  struct Options {
    int32_t batch = 4;
    int32_t rows = 256;
    int32_t page_size = 16;
    Dtype kv_type = Dtype::f32;
    const FeatureProjection* features = nullptr;
    const int32_t* feature_rows = nullptr;  // as Forward has it
  };
  Requests(const Model& model, Exec& exec, const Options& options);

  Logits extend(std::span<const Chunk> chunks);
  Logits extend(int32_t request, std::span<const int32_t> ids);  // alone
  Logits decode(std::span<const Chunk> chunks);                  // chunks of one token
  Logits decode_recorded(std::span<const Chunk> chunks);         // the same, by replay of a graph for the whole batch

  // The same in parts: the inputs of a step are laid out, it runs or is replayed, its logits are read.
  void lay_out(std::span<const Chunk> chunks);
  void run(attn::Mode mode);
  void record_decode();
  void replay_decode();
  Logits logits() const;
  const Forward& forward() const { return forward_; }

 private:
  struct Request {
    RequestRow row;
    int32_t length = 0;
  };
  Request& request(int32_t id);
  void add_token(const Request& of, int32_t id, int32_t position);
  attn::StepShape shape(attn::Mode mode, int32_t captured, int32_t rows) const;

  const Model& model_;
  Exec& exec_;
  Options options_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  Forward forward_;
  Graph decode_graph_;
  std::map<int32_t, Request> requests_;
};

std::vector<int32_t> random_ids(int32_t count, int32_t vocabulary, uint64_t seed);

}  // namespace quire::model::testing
