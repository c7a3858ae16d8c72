#include "gpu_attention_world.h"

#include <algorithm>
#include <cmath>

#include "attention_problem.h"
#include "attn/write_metadata.h"
#include "base/check.h"
#include "tree.h"

namespace quire::bench {
namespace {

constexpr int32_t kLeastCalls = 8;  // in a graph: its start is spread over them
constexpr double kLayersBytes = 600e6;

// Prefill reads its keys many times over: for it, two layers are as good as many.
int32_t layers_needed(const AttentionLine& line) {
  if (line.kind == Kind::prefill && line.fresh == 0) return 2;
  return std::max(2, static_cast<int32_t>(std::ceil(kLayersBytes / work_of(line).bytes)));
}

std::vector<int32_t> pages_of_each(const AttentionLine& line) {
  std::vector<int32_t> pages;
  for (int32_t request = 0; request < line.batch; ++request)
    pages.push_back(PageSize(line.page).pages_for(room_of(line, request)));
  return pages;
}

int64_t slots_of(const GpuTable& table) { return int64_t{table.view().pool_pages} * table.view().page_size.tokens(); }

int64_t key_elements(const AttentionLine& line) { return int64_t{line.heads.kv} * line.heads.dim; }
int64_t value_elements(const AttentionLine& line) {  // stored apart from the keys
  return line.heads.latent ? 0 : int64_t{line.heads.kv} * line.heads.value_dim;
}

int64_t layer_bytes(const AttentionLine& line, const GpuTable& table) {
  return slots_of(table) * (key_elements(line) + value_elements(line)) * size_of(line.type);
}

}  // namespace

GpuAttentionWorld::GpuAttentionWorld(const AttentionLine& line, Exec& exec)
    : line_(line),
      exec_(exec),
      layers_(layers_needed(line)),
      calls_(std::max(layers_, kLeastCalls)),
      table_(pages_of_each(line), PageSize(line.page), *exec.stream()),
      store_(static_cast<size_t>(layers_ * layer_bytes(line, table_)), Place::device),
      q_(static_cast<size_t>(query_elements(line) * size_of(line.query_type())), Place::device),
      out_(static_cast<size_t>(result_elements(line) * size_of(line.query_type())), Place::device),
      arena_(limits_of(line, Device::cuda, 1), Place::device),
      inputs_(arena_.limits(), Place::device),
      shape_{.mode = mode_of(line.kind),
             .captured = line.batch,
             .query_rows = static_cast<int32_t>(line.rows()),
             .table = table_.view()} {
  fill_randomly(store_, line.type);
  fill_randomly(q_, line.query_type());
  describe_requests();
  attn::write_metadata(shape_, inputs_.inputs(), arena_, exec_);
  exec_.begin_capture(graph_);
  for (int32_t call = 0; call < calls_; ++call) attn::attend(args(call % layers_), exec_);
  exec_.end_capture();
  graph_.replay(exec_);
  exec_.wait();
}

// The same few random rows again and again: what matters is where keys lie, not how they differ.
void GpuAttentionWorld::fill_randomly(const Buffer& memory, Dtype type) {
  constexpr int64_t kElements = 8 << 20;
  const Buffer random = random_elements(kElements, type, 2, Place::pinned);
  for (size_t at = 0; at < memory.size(); at += random.size())
    exec_.stream()->copy(memory.data() + at, random.data(), std::min(random.size(), memory.size() - at));
  exec_.wait();
}

void GpuAttentionWorld::describe_requests() {
  const attn::StepInputBuffers host(arena_.limits(), Place::pinned);
  host.live() = line_.batch;
  for (int32_t i = 0; i < line_.batch; ++i) {
    host.rows()[i] = {i + 1};
    host.lengths()[i] = {line_.tokens_of(i)};
    host.extend_lengths()[i] = {line_.fresh_of(i)};
    if (line_.kind == Kind::verify_tree) fill_tree_mask(host.tree_mask() + i * line_.nodes * line_.nodes, line_.nodes);
  }
  attn::check_step(shape_, host.inputs(), arena_.limits());
  exec_.stream()->copy(inputs_.memory().data(), host.memory().data(), host.memory().size());
  exec_.wait();
}

kv::LayerKv GpuAttentionWorld::layer(int32_t index) const {
  const Heads& heads = line_.heads;
  const int64_t slots = slots_of(table_);
  std::byte* keys = store_.data() + index * layer_bytes(line_, table_);
  return {.keys = keys,
          .values = heads.latent ? keys : keys + slots * key_elements(line_) * size_of(line_.type),
          .type = line_.type,
          .kv_heads = heads.kv,
          .key_dim = heads.dim,
          .value_dim = heads.value_dim,
          .key_stride = key_elements(line_),
          .value_stride = heads.latent ? key_elements(line_) : value_elements(line_),
          .key_scale = 1,
          .value_scale = 1,
          .slots = slots};
}

attn::AttendArgs GpuAttentionWorld::args(int32_t index) const {
  return {.keys = attn::key_view(arena_, shape_, attn::LayerKind::full),
          .arena = &arena_,
          .kv = layer(index),
          .q = query_rows(line_, q_),
          .out = result_rows(line_, out_),
          .scale = 1 / std::sqrt(static_cast<float>(line_.heads.dim)),
          .deterministic = line_.deterministic,
          .keys_are_settled = true};  // the kernel before is another layer's, or there is none in the graph
}

double GpuAttentionWorld::run() {
  return exec_.stream()->seconds_of([&] { graph_.replay(exec_); }) / calls_;
}

}  // namespace quire::bench
