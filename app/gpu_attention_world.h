// What `quire bench attention --device cuda` runs on: requests whose keys and values lie on the GPU in pages in random
// order, and one captured graph that attends to layer after layer, so that no cache helps.
#pragma once
#include <cstdint>
#include <vector>

#include "attention_lines.h"
#include "attn/attention.h"
#include "attn/step.h"
#include "base/buffer.h"
#include "base/exec.h"
#include "base/graph.h"
#include "gpu_table.h"

namespace quire::bench {

class GpuAttentionWorld {
 public:
  GpuAttentionWorld(const AttentionLine& line, Exec& exec);
  double run();  // seconds of one attend call, of a replay of all

 private:
  void fill_randomly(const Buffer& memory, Dtype type);
  void describe_requests();
  kv::LayerKv layer(int32_t index) const;
  attn::AttendArgs args(int32_t layer) const;

  AttentionLine line_;
  Exec& exec_;
  int32_t layers_, calls_;  // calls of attend in the graph, over the layers in turn
  GpuTable table_;
  Buffer store_, q_, out_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  attn::StepShape shape_;
  Graph graph_;
};

}  // namespace quire::bench
