#include "model/testing_eagle.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <system_error>

#include "base/check.h"
#include "base/testing/torch_file_bytes.h"
#include "model/testing_gguf.h"

namespace quire::model::testing {
namespace {

using nlohmann::json;

template <class T>
std::vector<std::byte> bytes_of_numbers(const std::vector<T>& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  check(file.good(), "cannot write ", path);
}

std::vector<float> numbers_of(const Vector& vector) { return {vector.data(), vector.data() + vector.size()}; }

class TinyHeadMaker {
 public:
  TinyHeadMaker(const Model& target, const TinyHead& tiny) : of_(target.config()), tiny_(tiny), random_(tiny.seed) {
    write_config(target.fingerprint());
    const int64_t width = of_.width, queries = int64_t{tiny.heads} * tiny.head_dim,
                  keys = int64_t{tiny.kv_heads} * tiny.head_dim;
    if (tiny.norm_features)
      for (int i = 0; i < 3; ++i) norm(cat("fc_norm.", i, ".weight"));
    matrix("fc.weight", width, 3 * width);
    for (const char* name : {"input_layernorm", "hidden_norm", "post_attention_layernorm"})
      norm(cat("midlayer.", name, ".weight"));
    matrix("midlayer.self_attn.q_proj.weight", queries, 2 * width);
    matrix("midlayer.self_attn.k_proj.weight", keys, 2 * width);
    matrix("midlayer.self_attn.v_proj.weight", keys, 2 * width);
    matrix("midlayer.self_attn.o_proj.weight", width, queries);
    matrix("midlayer.mlp.gate_proj.weight", tiny.ffn_width, width);
    matrix("midlayer.mlp.up_proj.weight", tiny.ffn_width, width);
    matrix("midlayer.mlp.down_proj.weight", width, tiny.ffn_width);
    norm("norm.weight");
    matrix("lm_head.weight", tiny.draft_vocabulary, width);
    std::vector<int32_t> ids;  // spread over the vocabulary
    for (int32_t i = 0; i < tiny.draft_vocabulary; ++i)
      ids.push_back(static_cast<int32_t>(int64_t{i} * of_.vocabulary / tiny.draft_vocabulary));
    file_.set_tokens(ids);
  }
  HeadWriter file_;

 private:
  void write_config(uint64_t fingerprint) {
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(fingerprint));
    file_.metadata = {{"format", "quire-eagle-head"}, {"version", "1"}};
    file_.config = {{"target_fingerprint", digits},
                    {"feature_layers", tiny_.feature_layers},
                    {"alignment", "token"},
                    {"hidden_size", of_.width},
                    {"intermediate_size", tiny_.ffn_width},
                    {"num_attention_heads", tiny_.heads},
                    {"num_key_value_heads", tiny_.kv_heads},
                    {"head_dim", tiny_.head_dim},
                    {"rms_norm_eps", 1e-5},
                    {"rope_theta", 1e4},
                    {"vocab_size", of_.vocabulary},
                    {"draft_vocab_size", tiny_.draft_vocabulary},
                    {"fc_norm", tiny_.norm_features},
                    {"norm_output", tiny_.norm_output},
                    {"temperature", tiny_.temperature}};
  }
  void matrix(const std::string& name, int64_t outputs, int64_t inputs) {
    const bool blocks = shape_of(tiny_.type).elements > 1;
    file_.tensors[name] = {.dtype = blocks ? "U8" : to_string(tiny_.type),
                           .dims = {outputs, blocks ? bytes_of(tiny_.type, inputs) : inputs},
                           .data = random_weights(tiny_.type, outputs * inputs, tiny_.spread, random_)};
    if (blocks) file_.types[name] = to_string(tiny_.type);
  }
  void norm(const std::string& name) {
    std::uniform_real_distribution<float> around(0.8f, 1.2f);
    std::vector<float> numbers(static_cast<size_t>(of_.width));
    for (float& number : numbers) number = around(random_);
    file_.set_vector(name, numbers);
  }

  const ModelConfig& of_;
  const TinyHead& tiny_;
  std::mt19937_64 random_;
};

}  // namespace

void HeadWriter::set_vector(const std::string& name, const std::vector<float>& numbers) {
  tensors[name] = {"F32", {std::ssize(numbers)}, bytes_of_numbers(numbers)};
}

void HeadWriter::set_matrix(const std::string& name, int64_t outputs, const std::vector<float>& numbers) {
  tensors[name] = {"F32", {outputs, std::ssize(numbers) / outputs}, bytes_of_numbers(numbers)};
  types.erase(name);
}

void HeadWriter::set_tokens(const std::vector<int32_t>& ids) {
  std::vector<int64_t> offsets;
  for (size_t i = 0; i < ids.size(); ++i) offsets.push_back(ids[i] - static_cast<int64_t>(i));
  tensors["d2t"] = {"I64", {std::ssize(offsets)}, bytes_of_numbers(offsets)};
}

std::string HeadWriter::bytes(const json& notes) const {
  json header = json::object();
  if (!notes.empty()) header["__metadata__"] = notes;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.dims}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  char prefix[sizeof(length)];
  std::memcpy(prefix, &length, sizeof(length));
  return std::string(prefix, sizeof(prefix)) + text + data;
}

std::string HeadWriter::write_file(const std::string& path) const {
  json notes(metadata);
  if (!config.is_null()) notes["config"] = config.dump();
  notes["types"] = types.dump();
  write_bytes(path, bytes(notes));
  return path;
}

std::string HeadWriter::torch_bytes() const {
  TorchFileBytes file;
  for (const auto& [name, tensor] : tensors)
    file.tensor(name, tensor.dtype, tensor.dims,
                {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()});
  return file.str("pytorch_model");
}

std::string HeadWriter::write_folder(const std::string& folder, const json& changes, Weights weights) const {
  json outputs = json::array();
  for (const json& layer : config.at("feature_layers")) outputs.push_back(layer.get<int>() - 1);
  json own = config;
  for (const char* key : {"target_fingerprint", "feature_layers", "alignment", "temperature"}) own.erase(key);
  own["architectures"] = {"LlamaForCausalLMEagle3"};
  own["model_type"] = "llama";
  own["num_hidden_layers"] = 1;
  own["max_position_embeddings"] = 2048;
  own["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", outputs}, {"use_aux_hidden_state", true}};
  own.update(changes);
  std::filesystem::create_directories(folder);
  write_bytes((std::filesystem::path(folder) / "config.json").string(), own.dump());
  const bool is_torch = weights == Weights::torch;
  write_bytes((std::filesystem::path(folder) / (is_torch ? "pytorch_model.bin" : "model.safetensors")).string(),
              is_torch ? torch_bytes() : bytes({}));
  return folder;
}

HeadWriter tiny_head(const Model& target, const TinyHead& tiny) { return TinyHeadMaker(target, tiny).file_; }

TinyModel target_without_memory(float certain, int32_t vocabulary) {
  return {.layers = 6, .vocabulary = vocabulary, .change = [certain, vocabulary](GgufWriter& gguf) {
            for (int layer = 0; layer < 6; ++layer) {
              gguf.tensor(cat("blk.", layer, ".attn_output.weight"), BlockType::f32, {64, 64},
                          std::vector<std::byte>(size_t{64} * 64 * 4));
              gguf.tensor(cat("blk.", layer, ".ffn_down.weight"), BlockType::f32, {64, 96},
                          std::vector<std::byte>(size_t{64} * 96 * 4));
            }
            std::mt19937_64 random(5);
            for (const auto& [name, spread] : {std::pair{"token_embd.weight", 1.0f}, {"output.weight", certain}})
              gguf.tensor(name, BlockType::f32, {vocabulary, 64},
                          random_weights(BlockType::f32, vocabulary * 64, spread, random));
          }};
}

// Attention that finds its own slot, or one of the same token (normed rows have one length: none is nearer to it than
// itself), hands that token's embedding on; the target's own last norm and output matrix do the rest. `certain` is the
// spread of the target's matrix.
HeadWriter knowing_head(const Model& target, float certain) {
  const int32_t vocabulary = target.config().vocabulary;
  HeadWriter head = tiny_head(
      target, {.draft_vocabulary = vocabulary, .heads = 1, .kv_heads = 1, .head_dim = 64, .feature_layers = {2, 3, 5}});
  const auto picks = [](float scale) {  // of [ embedding | state ] the embedding
    std::vector<float> matrix(size_t{64} * 128);
    for (int i = 0; i < 64; ++i) matrix[i * 128 + i] = scale;
    return matrix;
  };
  head.set_matrix("midlayer.self_attn.q_proj.weight", 64, picks(8));
  head.set_matrix("midlayer.self_attn.k_proj.weight", 64, picks(8));
  head.set_matrix("midlayer.self_attn.v_proj.weight", 64, picks(1));
  std::vector<float> identity(size_t{64} * 64);
  for (int i = 0; i < 64; ++i) identity[i * 64 + i] = 2000;
  head.set_matrix("midlayer.self_attn.o_proj.weight", 64, identity);
  head.set_matrix("midlayer.mlp.down_proj.weight", 64, std::vector<float>(size_t{64} * 96));
  head.set_vector("midlayer.input_layernorm.weight", std::vector<float>(64, 1.0f));
  head.set_vector("norm.weight", numbers_of(target.output_norm()));
  std::mt19937_64 random(5);
  random_weights(BlockType::f32, vocabulary * 64, 1.0f, random);
  const auto bytes = random_weights(BlockType::f32, vocabulary * 64, certain, random);
  std::vector<float> output(bytes.size() / sizeof(float));
  std::memcpy(output.data(), bytes.data(), bytes.size());
  head.set_matrix("lm_head.weight", vocabulary, output);
  return head;
}

TinyHeadFile::TinyHeadFile(const HeadWriter& writer) {
  static std::atomic<int> count = 0;
  const std::string name = cat("quire_tiny_head_", getpid(), "_", count++, ".safetensors");
  path_ = writer.write_file((std::filesystem::temp_directory_path() / name).string());
}

TinyHeadFile::~TinyHeadFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

HeadSlots::HeadSlots(const EagleHead& head, Exec& exec, PageSize page_size, Dtype kv_type)
    : exec_(exec),
      pool_(page_size.pages_for(kMostTokens) + 1, page_size),
      table_(pool_, 2, kMostTokens),
      store_(draft_kv_layout(head.spec(), pool_.pages(), page_size, kv_type)),
      arena_(draft_attention_limits(head.spec(), {.batch = 1,
                                                  .context = kMostTokens,
                                                  .page_size = page_size,
                                                  .threads = exec.threads(),
                                                  .query_rows = kMostTokens,
                                                  .wanted_rows = kMostTokens})),
      inputs_(arena_.limits()),
      forward_(head, arena_.limits(), kv_type),
      row_(table_.open()) {}

void HeadSlots::run(attn::Mode mode, std::span<const int32_t> tokens, std::span<const std::vector<float>> states) {
  const auto count = static_cast<int32_t>(tokens.size());
  check(table_.reserve(row_, {length_ + count}), "no pages left");
  inputs_.live() = 1;
  inputs_.rows()[0] = row_;
  inputs_.lengths()[0] = {length_ + count};
  inputs_.extend_lengths()[0] = {count};
  inputs_.query_rows() = inputs_.wanted_count() = inputs_.logits_count() = count;
  for (int32_t i = 0; i < count; ++i) {
    inputs_.input_ids()[i] = tokens[i];
    inputs_.positions()[i] = length_ + i;
    inputs_.slot_mapping()[i] = table_.slot(row_, length_ + i);
    inputs_.wanted_rows()[i] = i;
    std::copy(states[i].begin(), states[i].end(), forward_.states().row(i));
  }
  const attn::StepShape shape{.mode = mode, .captured = 1, .query_rows = count, .table = table_.view()};
  attn::check_step(shape, inputs_.inputs(), arena_.limits());
  forward_.run(shape, inputs_.inputs(), arena_, store_, exec_);
  length_ += count;
}

}  // namespace quire::model::testing
