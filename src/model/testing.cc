#include "model/testing.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <system_error>

#include "base/check.h"
#include "base/device_array.h"

namespace quire::model::testing {
namespace {

class TinyWriter {
 public:
  explicit TinyWriter(const TinyModel& tiny) : tiny_(tiny), random_(tiny.seed) {
    add_metadata();
    matrix("token_embd.weight", tiny.vocabulary, tiny.width);
    for (int32_t layer = 0; layer < tiny.layers; ++layer) add_layer(cat("blk.", layer, "."));
    norm("output_norm.weight", tiny.width);
    if (!tiny.tied) matrix("output.weight", tiny.vocabulary, tiny.width);
  }

  GgufWriter& file() { return file_; }

 private:
  void count(const std::string& key, int32_t value) {
    file_.set(cat(tiny_.architecture, ".", key), static_cast<uint32_t>(value));
  }
  void add_metadata() {
    file_.set("general.architecture", tiny_.architecture);
    file_.set("general.name", "tiny");
    count("block_count", tiny_.layers);
    count("context_length", tiny_.context);
    count("embedding_length", tiny_.width);
    count("feed_forward_length", tiny_.ffn_width);
    count("attention.head_count", tiny_.heads);
    count("attention.head_count_kv", tiny_.kv_heads);
    count("attention.key_length", tiny_.head_dim);
    count("attention.value_length", tiny_.head_dim);
    if (tiny_.window > 0) count("attention.sliding_window", tiny_.window);
    file_.set(cat(tiny_.architecture, ".attention.layer_norm_rms_epsilon"), 1e-5f);
    file_.set(cat(tiny_.architecture, ".rope.freq_base"), 10000.0f);
    if (tiny_.architecture == "granite")
      for (const auto& [name, value] : {std::pair{"attention.scale", 0.1f},
                                        {"embedding_scale", 12.0f},
                                        {"residual_scale", 0.22f},
                                        {"logit_scale", 8.0f}})
        file_.set(cat("granite.", name), value);
  }
  void add_layer(const std::string& prefix) {
    const int32_t queries = tiny_.heads * tiny_.head_dim, keys = tiny_.kv_heads * tiny_.head_dim;
    const bool is_olmo2 = tiny_.architecture == "olmo2";  // norms after each half and of whole rows
    if (!is_olmo2) norm(prefix + "attn_norm.weight", tiny_.width);
    matrix(prefix + "attn_q.weight", queries, tiny_.width);
    matrix(prefix + "attn_k.weight", keys, tiny_.width);
    matrix(prefix + "attn_v.weight", keys, tiny_.width);
    if (tiny_.architecture == "qwen2")
      for (const auto& [name, size] : {std::pair{"q", queries}, {"k", keys}, {"v", keys}})
        bias(cat(prefix, "attn_", name, ".bias"), size);
    if (is_olmo2 || tiny_.architecture == "qwen3") {
      norm(prefix + "attn_q_norm.weight", is_olmo2 ? queries : tiny_.head_dim);
      norm(prefix + "attn_k_norm.weight", is_olmo2 ? keys : tiny_.head_dim);
    }
    matrix(prefix + "attn_output.weight", tiny_.width, queries);
    norm(prefix + (is_olmo2 ? "post_attention_norm.weight" : "ffn_norm.weight"), tiny_.width);
    matrix(prefix + "ffn_gate.weight", tiny_.ffn_width, tiny_.width);
    matrix(prefix + "ffn_up.weight", tiny_.ffn_width, tiny_.width);
    matrix(prefix + "ffn_down.weight", tiny_.width, tiny_.ffn_width);
    if (is_olmo2) norm(prefix + "post_ffw_norm.weight", tiny_.width);
  }
  void matrix(const std::string& name, int64_t outputs, int64_t inputs) {
    file_.tensor(name, tiny_.type, {outputs, inputs},
                 random_weights(tiny_.type, outputs * inputs, tiny_.spread, random_));
  }
  void bias(const std::string& name, int64_t size) {
    file_.tensor(name, BlockType::f32, {size}, random_weights(BlockType::f32, size, 0.1f, random_));
  }
  void norm(const std::string& name, int64_t size) {  // around 1
    std::vector<std::byte> bytes = random_weights(BlockType::f32, size, 0.1f, random_);
    for (int64_t i = 0; i < size; ++i)
      store_element(Dtype::f32, bytes.data(), i, 1 + load_element(Dtype::f32, bytes.data(), i));
    file_.tensor(name, BlockType::f32, {size}, std::move(bytes));
  }

  const TinyModel& tiny_;
  std::mt19937_64 random_;
  GgufWriter file_;
};

int32_t pages_for(const ModelConfig& config, const Requests::Options& options) {
  return 1 + options.batch * PageSize(options.page_size).pages_for(config.context);
}

}  // namespace

std::string write_tiny_gguf(const std::string& path, const TinyModel& tiny) {
  TinyWriter writer(tiny);
  if (tiny.change) tiny.change(writer.file());
  writer.file().write(path);
  return path;
}

TinyFile::TinyFile(const TinyModel& tiny) {
  static std::atomic<int> count = 0;
  const std::string name = cat("quire_tiny_", getpid(), "_", count++, ".gguf");
  path_ = write_tiny_gguf((std::filesystem::temp_directory_path() / name).string(), tiny);
}

TinyFile::~TinyFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

namespace {

// What the host fills and the device reads.
Place shared_place(const Exec& exec) { return exec.device() == Device::cpu ? Place::host : Place::pinned; }

}  // namespace

Requests::Requests(const Model& model, Exec& exec, const Options& options)
    : model_(model),
      exec_(exec),
      options_(options),
      pool_(pages_for(model.config(), options), PageSize(options.page_size)),
      table_(pool_, options.batch + 1, model.config().context, shared_place(exec)),
      store_(kv_layout(model.config(), pool_.pages(), PageSize(options.page_size), options.kv_type),
             place_of(exec.device())),
      arena_(attention_limits(model.config(), {.batch = options.batch,
                                               .context = model.config().context,
                                               .page_size = PageSize(options.page_size),
                                               .threads = exec.threads(),
                                               .query_rows = options.rows,
                                               .wanted_rows = options.rows,
                                               .device = exec.device()}),
             place_of(exec.device())),
      inputs_(arena_.limits(), shared_place(exec)),
      forward_(model, arena_.limits(), options.kv_type, false, options.features, options.feature_rows) {}

Requests::Logits Requests::extend(std::span<const Chunk> chunks) {
  lay_out(chunks);
  run(attn::Mode::extend);
  return logits();
}

Requests::Logits Requests::extend(int32_t id, std::span<const int32_t> ids) {
  const Chunk chunk{id, {ids.begin(), ids.end()}};
  return extend({&chunk, 1});
}

Requests::Logits Requests::decode(std::span<const Chunk> chunks) {
  lay_out(chunks);
  run(attn::Mode::decode);
  return logits();
}

Requests::Logits Requests::decode_recorded(std::span<const Chunk> chunks) {
  if (decode_graph_.size() == 0) record_decode();
  lay_out(chunks);
  replay_decode();
  return logits();
}

void Requests::run(attn::Mode mode) {
  const attn::StepShape step = shape(mode, inputs_.live(), inputs_.query_rows());
  attn::check_step(step, inputs_.inputs(), arena_.limits());
  forward_.run(step, inputs_.inputs(), arena_, store_, exec_);
}

void Requests::record_decode() {
  exec_.begin_capture(decode_graph_);
  forward_.run(shape(attn::Mode::decode, options_.batch, options_.batch), inputs_.inputs(), arena_, store_, exec_);
  exec_.end_capture();
}

void Requests::replay_decode() {
  attn::check_step(shape(attn::Mode::decode, options_.batch, options_.batch), inputs_.inputs(), arena_.limits());
  decode_graph_.replay(exec_);
}

Requests::Request& Requests::request(int32_t id) {
  const auto [found, is_new] = requests_.try_emplace(id);
  if (is_new) found->second.row = table_.open();
  return found->second;
}

void Requests::lay_out(std::span<const Chunk> chunks) {
  inputs_.query_rows() = inputs_.wanted_count() = inputs_.logits_count() = 0;
  inputs_.live() = static_cast<int32_t>(chunks.size());
  for (size_t b = 0; b < chunks.size(); ++b) {
    Request& of = request(chunks[b].request);
    const auto added = static_cast<int32_t>(chunks[b].ids.size());
    check(table_.reserve(of.row, {of.length + added}), "no pages left");
    for (const int32_t id : chunks[b].ids) add_token(of, id, of.length++);
    inputs_.rows()[b] = of.row;
    inputs_.lengths()[b] = {of.length};
    inputs_.extend_lengths()[b] = {added};
  }
}

void Requests::add_token(const Request& of, int32_t id, int32_t position) {
  const int32_t row = inputs_.query_rows()++;
  check(row < options_.rows && id >= 0 && id < model_.config().vocabulary, "row ", row, " with token ", id);
  inputs_.input_ids()[row] = id;
  inputs_.positions()[row] = position;
  inputs_.slot_mapping()[row] = table_.slot(of.row, position);
  inputs_.wanted_rows()[inputs_.wanted_count()++] = row;
  inputs_.logits_count() = inputs_.wanted_count();
}

attn::StepShape Requests::shape(attn::Mode mode, int32_t captured, int32_t rows) const {
  return {.mode = mode, .captured = captured, .query_rows = rows, .table = table_.view()};
}

Requests::Logits Requests::logits() const {
  Logits all;
  const auto count = static_cast<size_t>(model_.config().vocabulary);
  for (int32_t row = 0; row < inputs_.logits_count(); ++row) {
    std::vector<float>& logits = all.emplace_back(count);
    const float* const from = forward_.logits().row(row);
    if (exec_.stream())
      exec_.stream()->copy(reinterpret_cast<std::byte*>(logits.data()), reinterpret_cast<const std::byte*>(from),
                           count * sizeof(float));
    else
      std::copy_n(from, count, logits.begin());
  }
  exec_.wait();
  return all;
}

std::vector<int32_t> random_ids(int32_t count, int32_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  return ids;
}

}  // namespace quire::model::testing
