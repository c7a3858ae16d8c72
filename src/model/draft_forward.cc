#include "model/draft_forward.h"

#include <algorithm>

#include "attn/attention.h"
#include "attn/write_metadata.h"
#include "base/check.h"
#include "model/blocks.h"
#include "model/blocks_composed.h"
#include "model/draft_rows.h"
#include "model/rope_store.h"
#include "model/step_arrays.h"
#include "ops/embed.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace quire::model {

kv::KvLayout draft_kv_layout(const EagleSpec& spec, int32_t pages, PageSize page_size, Dtype type) {
  const AttentionSpec& heads = spec.layer.attention;
  return {.layers = 1,
          .pages = pages,
          .page_size = page_size,
          .type = type,
          .kv_heads = heads.kv_heads,
          .key_dim = heads.key_dim,
          .value_dim = heads.value_dim};
}

attn::Limits draft_attention_limits(const EagleSpec& spec, attn::Limits limits) {
  const AttentionSpec& heads = spec.layer.attention;
  limits.heads = heads.heads;
  limits.kv_heads = heads.kv_heads;
  limits.key_dim = heads.key_dim;
  limits.value_dim = heads.value_dim;
  return limits;
}

struct DraftForward::Impl {
  Impl(const EagleHead& of, const attn::Limits& up_to, Dtype type, bool is_deterministic);

  // Rows of the requests of a step, one of each, on their way from attention to the logits.
  struct Last {
    float* x;         // [rows, width]
    float* attended;  // [rows, heads, value dim]
    int64_t rows;
    const int32_t* live;
  };
  void make_angles(const int32_t* positions, const int32_t* live, Exec& exec) const;
  void store_keys(const attn::StepInputs& inputs, const kv::KvStore& store, int64_t rows, int64_t first_angle,
                  Exec& exec) const;
  attn::AttendArgs attention(const attn::StepShape& shape, const attn::MetadataArena& arena, const kv::KvStore& store,
                             const Array<std::byte>& queries) const;
  void gather_wanted(const attn::StepInputs& inputs, const Last& last, int64_t rows, Exec& exec) const;
  void finish(const Last& last, const BlockChoice& blocks, Exec& exec) const;
  BlockChoice blocks_for(int64_t rows) const;
  BlockRows block_rows(float* stream, int64_t rows, const int32_t* live) const;
  HeadRows query_rows(const Array<std::byte>& queries, int64_t rows) const;
  int64_t query_bytes() const { return heads.q_width() * size_of(query_type_for(kv_type, limits.device)); }

  const EagleHead& head;
  const EagleSpec& spec;
  const AttentionSpec& heads;
  attn::Limits limits;
  Dtype kv_type;
  bool deterministic;
  Place place;

  Array<float> cos, sin;         // [rows, rotary / 2]
  Array<float> embedded;         // [rows, width]
  Array<float> x;                // [rows, width] the states
  Array<float> qkv;              // [rows, q, k and v heads]
  Array<std::byte> q;            // [rows, heads, key dim]
  Array<float> attended;         // [rows, heads, value dim]; of a GPU the last rows'
  Array<float> wanted_x;         // [wanted_rows, width]
  Array<std::byte> wanted_q;     // [wanted_rows, heads, key dim] of a GPU
  Array<float> wanted_attended;  // [wanted_rows, heads, value dim] of a CPU
  Array<float> wanted_normed;    // [wanted_rows, width]
  Array<float> hidden;           // [wanted_rows, ffn width]
  Array<float> logits;           // [wanted_rows, draft vocabulary]
  Array<uint16_t> stream;        // [wanted_rows, width] x for the next norm, of a GPU
  Array<float> stream_squares;   // [wanted_rows, width / 16]
  ops::ActivationBuffer activations;
};

DraftForward::Impl::Impl(const EagleHead& of, const attn::Limits& up_to, Dtype type, bool is_deterministic)
    : head(of),
      spec(of.spec()),
      heads(spec.layer.attention),
      limits(up_to),
      kv_type(type),
      deterministic(is_deterministic),
      place(place_of(limits.device)),
      cos(int64_t{limits.query_rows} * spec.rope.rotary / 2, place),
      sin(int64_t{limits.query_rows} * spec.rope.rotary / 2, place),
      embedded(int64_t{limits.query_rows} * spec.width, place),
      x(int64_t{limits.query_rows} * spec.width, place),
      qkv(limits.query_rows * heads.qkv_width(), place),
      q(limits.query_rows * query_bytes(), place),
      attended(limits.query_rows * heads.out_width(), place),
      wanted_x(int64_t{limits.wanted_rows} * spec.width, place),
      wanted_q(limits.wanted_rows * query_bytes(), place),
      wanted_attended(limits.wanted_rows * heads.out_width(), place),
      wanted_normed(int64_t{limits.wanted_rows} * spec.width, place),
      hidden(int64_t{limits.wanted_rows} * spec.layer.feed_forward.width, place),
      logits(int64_t{limits.wanted_rows} * spec.draft_vocabulary, place),
      stream(int64_t{limits.wanted_rows} * spec.width, place),
      stream_squares(int64_t{limits.wanted_rows} * spec.width / ops::kStreamGroup, place),
      activations(limits.query_rows,
                  std::max({int64_t{spec.width}, heads.out_width(), int64_t{spec.layer.feed_forward.width}}), place) {}

BlockRows DraftForward::Impl::block_rows(float* rows_of_x, int64_t rows, const int32_t* live) const {
  return {.x = dense_rows(rows_of_x, rows, spec.width),
          .live_rows = live,
          .precise = false,
          .norm_eps = spec.norm_eps,
          .activations = &activations,
          .result = nullptr,
          .stream = stream.data(),
          .stream_squares = stream_squares.data(),
          .deterministic = deterministic};
}

BlockChoice DraftForward::Impl::blocks_for(int64_t rows) const {
  return choose_blocks(spec.layer, limits.device, rows, forms_of(head.layer()),
                       deterministic ? 0 : most_fused_rows(head.layer()));
}

HeadRows DraftForward::Impl::query_rows(const Array<std::byte>& queries, int64_t rows) const {
  return {.data = queries.data(),
          .type = query_type_for(kv_type, limits.device),
          .rows = rows,
          .heads = heads.heads,
          .dim = heads.key_dim,
          .row_stride = heads.q_width()};
}

void DraftForward::Impl::make_angles(const int32_t* positions, const int32_t* live, Exec& exec) const {
  ops::rope_angles({.positions = positions,
                    .inverse_frequency = head.rope_frequencies().data(),
                    .magnitude = head.rope().magnitude,
                    .half = spec.rope.rotary / 2,
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .live_rows = live},
                   exec);
}

// The product over [ embedding | state ] is the sum of its two halves.
void DraftForward::Impl::store_keys(const attn::StepInputs& inputs, const kv::KvStore& store, int64_t rows,
                                    int64_t first_angle, Exec& exec) const {
  const int32_t* live = inputs.query_rows;
  const BlockRows tokens = block_rows(embedded.data(), rows, live), states = block_rows(x.data(), rows, live);
  ops::embed({.table = head.embedding(), .ids = inputs.input_ids, .out = tokens.x, .live_rows = live}, exec);
  const Rows<float> out = dense_rows(qkv.data(), rows, heads.qkv_width());
  composed::multiply({.weights = &head.qkv_of_embedding(), .in = {}, .out = out, .live_rows = live}, tokens.x,
                     head.embedding_norm(), tokens, exec);
  composed::multiply({.weights = &head.layer().qkv, .in = {}, .out = out, .store = ops::Store::add, .live_rows = live},
                     states.x, head.layer().attention_norm, states, exec);
  const auto rotate_and_store = limits.device == Device::cuda ? cuda::rope_store : composed::rotate_and_store;
  rotate_and_store({.spec = &spec.layer,
                    .weights = &head.layer(),
                    .rows = states,
                    .rope = spec.rope,
                    .cos = cos.data() + first_angle * spec.rope.rotary / 2,
                    .sin = sin.data() + first_angle * spec.rope.rotary / 2,
                    .qkv = out,
                    .q = query_rows(q, rows),
                    .kv = store.layer(0),
                    .slots = inputs.slot_mapping},
                   exec);
}

attn::AttendArgs DraftForward::Impl::attention(const attn::StepShape& shape, const attn::MetadataArena& arena,
                                               const kv::KvStore& store, const Array<std::byte>& queries) const {
  const HeadRows of = query_rows(queries, shape.query_rows);
  return {.keys = attn::key_view(arena, shape, attn::LayerKind::full),
          .arena = &arena,
          .kv = store.layer(0),
          .q = {of.data, of.type, of.rows, of.heads, of.dim, of.row_stride},
          .out = {.data = reinterpret_cast<std::byte*>(attended.data()),
                  .type = Dtype::f32,
                  .rows = shape.query_rows,
                  .heads = heads.heads,
                  .dim = heads.value_dim,
                  .row_stride = heads.out_width()},
          .scale = heads.scale,
          .deterministic = deterministic,
          .keys_are_settled = shape.mode != attn::Mode::decode};  // of an extend several are new
}

void DraftForward::Impl::gather_wanted(const attn::StepInputs& inputs, const Last& last, int64_t rows,
                                       Exec& exec) const {
  const auto gather = [&](const Array<float>& from, float* to, int64_t dim) {
    ops::gather_rows({.in = dense_rows(from.data(), rows, dim),
                      .index = inputs.wanted_rows,
                      .out = dense_rows(to, last.rows, dim),
                      .live_rows = last.live},
                     exec);
  };
  gather(x, last.x, spec.width);
  gather(attended, last.attended, heads.out_width());
}

void DraftForward::Impl::finish(const Last& last, const BlockChoice& blocks, Exec& exec) const {
  BlockRows rows = block_rows(last.x, last.rows, last.live);
  const LayerWeights& layer = head.layer();
  blocks.attention_out.run({.spec = &spec.layer,
                            .weights = &layer.attention_out,
                            .norm_after = &layer.attention_post_norm,
                            .rows = rows,
                            .in = dense_rows(last.attended, last.rows, heads.out_width()),
                            .next_norm = &layer.ffn_norm},
                           exec);
  rows.streamed = blocks.streams;
  const Rows<float> gated = dense_rows(hidden.data(), last.rows, spec.layer.feed_forward.width);
  blocks.gate_up.run({.weights = &layer, .rows = rows, .out = gated}, exec);
  blocks.down.run(
      {.spec = &spec.layer, .weights = &layer.down, .norm_after = &layer.ffn_post_norm, .rows = rows, .in = gated},
      exec);
  blocks.head.run({.weights = &head.output(),
                   .norm = &head.output_norm(),
                   .rows = rows,
                   .normed = dense_rows(wanted_normed.data(), last.rows, spec.width),
                   .logits = dense_rows(logits.data(), last.rows, spec.draft_vocabulary),
                   .logits_rows = last.live,
                   .logits_scale = 1 / spec.temperature},
                  exec);
}

DraftForward::DraftForward(const EagleHead& head, const attn::Limits& limits, Dtype kv_type, bool deterministic)
    : impl_(std::make_unique<Impl>(head, limits, kv_type, deterministic)) {}
DraftForward::~DraftForward() = default;

Rows<float> DraftForward::states() const {
  return dense_rows(impl_->x.data(), impl_->limits.query_rows, impl_->spec.width);
}
Rows<const float> DraftForward::next_states() const {
  const Array<float>& handed_on = impl_->spec.norm_output ? impl_->wanted_normed : impl_->wanted_x;
  return dense_rows(handed_on.data(), impl_->limits.wanted_rows, impl_->spec.width);
}
Rows<const float> DraftForward::passed_states() const {
  const Array<float>& handed_on = impl_->spec.norm_output ? impl_->wanted_normed : impl_->x;
  return dense_rows(handed_on.data(), impl_->limits.wanted_rows, impl_->spec.width);
}
Rows<const float> DraftForward::logits() const {
  return dense_rows(impl_->logits.data(), impl_->limits.wanted_rows, impl_->spec.draft_vocabulary);
}

void DraftForward::run(const attn::StepShape& shape, const attn::StepInputs& inputs, const attn::MetadataArena& arena,
                       const kv::KvStore& store, Exec& exec) const {
  const bool is_tree = shape.mode == attn::Mode::draft_tree;
  check(shape.mode == attn::Mode::draft_extend || shape.mode == attn::Mode::decode || is_tree,
        "a draft step in the mode ", shape.mode);
  check(shape.query_rows <= impl_->limits.query_rows, "a draft step of ", shape.query_rows, " rows, up to ",
        impl_->limits.query_rows, " have room");
  impl_->make_angles(inputs.positions, inputs.query_rows, exec);
  impl_->store_keys(inputs, store, shape.query_rows, 0, exec);
  if (*inputs.wanted_count == 0) return;
  if (!is_tree || shape.draft_step == 0) attn::write_metadata(shape, inputs, arena, exec);
  attn::attend(impl_->attention(shape, arena, store, impl_->q), exec);
  const Impl::Last last{.x = impl_->wanted_x.data(),
                        .attended = impl_->wanted_attended.data(),
                        .rows = std::min(shape.query_rows, impl_->limits.wanted_rows),
                        .live = inputs.wanted_count};
  impl_->gather_wanted(inputs, last, shape.query_rows, exec);
  impl_->finish(last, impl_->blocks_for(last.rows), exec);
}

void DraftForward::extend(const Recorded& step, int64_t rows) const {
  const auto& [shape, inputs, arena, store, exec] = step;
  check(rows <= impl_->limits.query_rows && shape.captured <= impl_->limits.wanted_rows, "a draft step of ", rows,
        " rows of ", shape.captured, " requests, up to ", impl_->limits.query_rows, " of ", impl_->limits.wanted_rows,
        " have room");
  make_angles(inputs.positions, inputs.query_rows, exec);
  impl_->store_keys(inputs, store, rows, 0, exec);
  const Impl::Last last{
      .x = impl_->wanted_x.data(), .attended = impl_->attended.data(), .rows = shape.captured, .live = inputs.live};
  cuda::take_rows({.wanted = inputs.wanted_rows,
                   .x = states(),
                   .x_out = dense_rows(last.x, last.rows, impl_->spec.width),
                   .q = impl_->q.data(),
                   .q_out = impl_->wanted_q.data(),
                   .q_bytes = impl_->query_bytes(),
                   .live = last.live},
                  exec);
  const BlockChoice blocks = impl_->blocks_for(last.rows);
  blocks.attention.run(impl_->attention(shape, arena, store, impl_->wanted_q), exec);
  impl_->finish(last, blocks, exec);
}

void DraftForward::make_angles(const int32_t* positions, const int32_t* live_rows, Exec& exec) const {
  impl_->make_angles(positions, live_rows, exec);
}

void DraftForward::pass(const Recorded& step, int64_t first_angle) const {
  const auto& [shape, inputs, arena, store, exec] = step;
  const int64_t rows = shape.query_rows;
  check(first_angle + rows <= impl_->limits.query_rows && rows <= impl_->limits.wanted_rows, "a pass of ", rows,
        " rows after ", first_angle, ", up to ", impl_->limits.query_rows, " in all and ", impl_->limits.wanted_rows,
        " at once have room");
  const BlockChoice blocks = impl_->blocks_for(rows);
  impl_->store_keys(inputs, store, rows, first_angle, exec);
  blocks.attention.run(impl_->attention(shape, arena, store, impl_->q), exec);
  impl_->finish({.x = impl_->x.data(), .attended = impl_->attended.data(), .rows = rows, .live = inputs.query_rows},
                blocks, exec);
}

}  // namespace quire::model
