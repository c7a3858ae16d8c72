// What the lines of `quire bench attention` run on: requests with stored keys and values, and steps over them.
//
// A world has several layers and each call takes the next one, so that a call's keys and values were pushed out of
// the caches by the calls before it: a model's layers do the same to each other. Pages lie in random order.
#pragma once
#include <cstdint>
#include <vector>

#include "attention_lines.h"
#include "attn/attention.h"
#include "attn/step.h"
#include "base/buffer.h"
#include "base/exec.h"
#include "kv/page_pool.h"
#include "kv/request_table.h"
#include "kv/store.h"

namespace quire::bench {

class AttentionWorld {
 public:
  AttentionWorld(const AttentionLine& line, Exec& exec);  // with room for a tree behind the line's tokens

  // Whether the line's step can run on this world's keys and values.
  bool serves(const AttentionLine& line) const;

  const std::vector<RequestRow>& rows() const { return rows_; }
  kv::TableView table() const { return table_.view(); }
  kv::LayerKv next_layer();

 private:
  void open_requests();
  void store_layer(const kv::LayerKv& layer, Exec& exec) const;

  AttentionLine line_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  kv::KvStore store_;
  std::vector<RequestRow> rows_;
  int32_t calls_ = 0;
};

class AttentionStep {
 public:
  AttentionStep(const AttentionLine& line, AttentionWorld& world, Exec& exec);  // writes the metadata
  double run();  // seconds of one attend call, and nothing else

 private:
  void describe_requests();
  attn::AttendArgs make_args() const;

  AttentionLine line_;
  AttentionWorld& world_;
  Exec& exec_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  attn::StepShape shape_;
  Buffer q_;
  Buffer out_;
  attn::AttendArgs args_;
};

}  // namespace quire::bench
