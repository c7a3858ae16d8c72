// One step in a world of its own, as one line of a test's table.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "attn/testing/world.h"

namespace quire::attn::testing {

struct Case {
  Mode mode = Mode::decode;
  LayerKind kind = LayerKind::full;
  Form form = Form::in_place;
  int32_t page_size = 16;
  Dtype query_type = Dtype::f32;
  Dtype kv_type = Dtype::f32;
  Dtype out_type = Dtype::f32;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t key_dim = 64;
  int32_t value_dim = 0;  // 0: as key_dim
  bool latent = false;
  std::vector<int32_t> lengths = {};             // s of each request
  std::vector<int32_t> extend = {};              // extend, draft_extend
  std::vector<int32_t> requests = {};            // which requests they are; empty: 0, 1, ...
  std::vector<std::vector<int32_t>> trees = {};  // parents of each request's nodes; empty: random trees
  int32_t captured = 0;
  int32_t sequence_rows = 0;
  int32_t topk = 1;
  int32_t draft_steps = 0;
  int32_t draft_step = 0;
  int32_t draft_tokens = 0;
  int32_t chunk = 0;
  int32_t window = -1;  // of all layers but the encoder's; with window_pool of the window layers only
  bool window_pool = false;
  float softcap = 0;
  bool sinks = false;
  std::vector<int32_t> encoder = {};  // encoder keys of each request
  float key_scale = 1;
  float value_scale = 1;
  float score_scale = 1;  // beside the usual one
  int32_t threads = 1;
  int32_t context = 0;  // 0: as long as the longest request
  Layout layout = Layout::shuffled;
  uint64_t seed = 1;
  Place place = Place::host;
  bool deterministic = false;

  WorldSpec world() const;
  Step step() const;
};
std::string to_string(const Case& c);

// Parents of a random tree of `nodes`, the root first.
std::vector<int32_t> random_parents(int32_t nodes, std::mt19937_64& random);

// Lays out the case, poisons everything with the guard, writes the metadata and attends.
Result run_case(const Case& c, AttendFn* attend, Exec& exec, WriteMetadataFn* write = write_metadata);
Attention expected_of(const Case& c);

}  // namespace quire::attn::testing
