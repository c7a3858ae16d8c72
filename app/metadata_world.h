// What the lines of `quire bench metadata` run on: a batch of long requests, and the inputs of every mode for it.
#pragma once
#include <cstdint>

#include "attn/metadata.h"
#include "attn/step.h"
#include "kv/page_pool.h"
#include "kv/request_table.h"
#include "kv/window_pool.h"

namespace quire::bench {

class MetadataWorld {
 public:
  MetadataWorld(int32_t batch, int32_t context, int threads);

  const attn::MetadataArena& arena() const { return arena_; }
  attn::StepInputs inputs() const { return inputs_.inputs(); }
  attn::StepShape shape(attn::Mode mode, attn::LayerKind kind, attn::Form form) const;

 private:
  void open_request(int32_t index);
  void draft(int32_t index);

  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  kv::WindowPool window_;
  kv::TableView window_view_;
};

inline constexpr int32_t kTreeNodes = 16;  // nodes of a verified tree

}  // namespace quire::bench
