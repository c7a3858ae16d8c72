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

int64_t layer_elements(const AttentionLine& line, int32_t width) {
  return 2 * (int64_t{line.batch} * width + 1) * line.page * line.heads.kv * line.heads.dim;
}

int32_t layers_needed(const AttentionLine& line) {
  const double bytes = 2.0 * line.batch * line.tokens * line.heads.kv * line.heads.dim * size_of(line.type);
  return std::max(2, static_cast<int32_t>(std::ceil(kLayersBytes / bytes)));
}

}  // namespace

GpuAttentionWorld::GpuAttentionWorld(const AttentionLine& line, Exec& exec)
    : line_(line),
      exec_(exec),
      width_(PageSize(line.page).pages_for(tokens_each(line))),
      layers_(layers_needed(line)),
      table_(line.batch, width_, PageSize(line.page), *exec.stream()),
      store_(static_cast<size_t>(layers_ * layer_elements(line, width_) * size_of(line.type)), Place::device),
      q_(static_cast<size_t>(line.rows() * int64_t{line.heads.query} * line.heads.dim * size_of(line.type)),
         Place::device),
      out_(q_.size(), Place::device),
      arena_(limits_of(line, 1), Place::device),
      inputs_(arena_.limits(), Place::device),
      shape_{.mode = mode_of(line.kind), .captured = line.batch, .table = table_.view()} {
  fill_store();
  describe_requests();
  attn::write_metadata(shape_, inputs_.inputs(), arena_, exec_);
  exec_.begin_capture(graph_);
  for (int32_t call = 0; call < std::max(layers_, kLeastCalls); ++call) attn::attend(args(call % layers_), exec_);
  exec_.end_capture();
  graph_.replay(exec_);
  exec_.wait();
}

// The same few random rows again and again: what matters is where keys lie, not how they differ.
void GpuAttentionWorld::fill_store() {
  constexpr int64_t kElements = 8 << 20;
  const Buffer random = random_elements(kElements, line_.type, 2, Place::pinned);
  for (size_t at = 0; at < store_.size(); at += random.size())
    exec_.stream()->copy(store_.data() + at, random.data(), std::min(random.size(), store_.size() - at));
  exec_.stream()->copy(q_.data(), random.data(), std::min(q_.size(), random.size()));
  exec_.wait();
}

void GpuAttentionWorld::describe_requests() {
  const attn::StepInputBuffers host(arena_.limits(), Place::pinned);
  host.live() = line_.batch;
  for (int32_t i = 0; i < line_.batch; ++i) {
    host.rows()[i] = {i + 1};
    host.lengths()[i] = {line_.tokens};
    host.extend_lengths()[i] = {line_.tokens};
    if (line_.kind == Kind::verify_tree) fill_tree_mask(host.tree_mask() + i * line_.nodes * line_.nodes, line_.nodes);
  }
  attn::check_step(shape_, host.inputs(), arena_.limits());
  exec_.stream()->copy(inputs_.memory().data(), host.memory().data(), host.memory().size());
  exec_.wait();
}

kv::LayerKv GpuAttentionWorld::layer(int32_t index) const {
  const int64_t elements = layer_elements(line_, width_), stride = int64_t{line_.heads.kv} * line_.heads.dim;
  std::byte* keys = store_.data() + index * elements * size_of(line_.type);
  return {.keys = keys,
          .values = keys + elements / 2 * size_of(line_.type),
          .type = line_.type,
          .kv_heads = line_.heads.kv,
          .key_dim = line_.heads.dim,
          .value_dim = line_.heads.dim,
          .key_stride = stride,
          .value_stride = stride,
          .key_scale = 1,
          .value_scale = 1,
          .slots = elements / 2 / stride};
}

attn::AttendArgs GpuAttentionWorld::args(int32_t index) const {
  const int32_t heads = line_.heads.query, dim = line_.heads.dim;
  const int64_t rows = line_.rows(), stride = int64_t{heads} * dim;
  return {.keys = attn::key_view(arena_, shape_, attn::LayerKind::full),
          .arena = &arena_,
          .kv = layer(index),
          .q = {q_.data(), line_.type, rows, heads, dim, stride},
          .out = {out_.data(), line_.type, rows, heads, dim, stride},
          .scale = 1 / std::sqrt(static_cast<float>(dim))};
}

double GpuAttentionWorld::run() {
  const double seconds = exec_.stream()->seconds_of([&] { graph_.replay(exec_); });
  return seconds / std::max(layers_, kLeastCalls);
}

}  // namespace quire::bench
