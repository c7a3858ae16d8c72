#include "model/draft_forward.h"

#include <algorithm>

#include "attn/attention.h"
#include "attn/write_metadata.h"
#include "base/check.h"
#include "model/blocks.h"
#include "model/blocks_composed.h"
#include "model/step_arrays.h"
#include "ops/embed.h"
#include "ops/matmul.h"
#include "ops/rms_norm.h"
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
  Impl(const EagleHead& of, const attn::Limits& up_to, Dtype type);

  void store_keys(const attn::StepInputs& inputs, const kv::KvStore& store, int64_t rows, Exec& exec) const;
  void attend(const attn::StepShape& shape, const attn::MetadataArena& arena, const kv::KvStore& store,
              Exec& exec) const;
  void finish_wanted(const attn::StepInputs& inputs, int64_t rows, Exec& exec) const;
  BlockRows block_rows(float* stream, int64_t rows, const int32_t* live) const;
  HeadRows query_rows(int64_t rows) const;

  const EagleHead& head;
  const EagleSpec& spec;
  const AttentionSpec& heads;
  attn::Limits limits;
  Dtype kv_type;

  Array<float> cos, sin;         // [rows, rotary / 2]
  Array<float> embedded;         // [rows, width]
  Array<float> x;                // [rows, width] the states
  Array<float> qkv;              // [rows, q, k and v heads]
  Array<std::byte> q;            // [rows, heads, key dim]
  Array<float> attended;         // [rows, heads, value dim]
  Array<float> wanted_x;         // [wanted_rows, width]
  Array<float> wanted_attended;  // [wanted_rows, heads, value dim]
  Array<float> wanted_normed;    // [wanted_rows, width]
  Array<float> hidden;           // [wanted_rows, ffn width]
  Array<float> logits;           // [wanted_rows, draft vocabulary]
  ops::ActivationBuffer activations;
};

DraftForward::Impl::Impl(const EagleHead& of, const attn::Limits& up_to, Dtype type)
    : head(of),
      spec(of.spec()),
      heads(spec.layer.attention),
      limits(up_to),
      kv_type(type),
      cos(int64_t{limits.query_rows} * spec.rope.rotary / 2, Place::host),
      sin(int64_t{limits.query_rows} * spec.rope.rotary / 2, Place::host),
      embedded(int64_t{limits.query_rows} * spec.width, Place::host),
      x(int64_t{limits.query_rows} * spec.width, Place::host),
      qkv(limits.query_rows * heads.qkv_width(), Place::host),
      q(limits.query_rows * heads.q_width() * size_of(query_type_for(type, Device::cpu)), Place::host),
      attended(limits.query_rows * heads.out_width(), Place::host),
      wanted_x(int64_t{limits.wanted_rows} * spec.width, Place::host),
      wanted_attended(limits.wanted_rows * heads.out_width(), Place::host),
      wanted_normed(int64_t{limits.wanted_rows} * spec.width, Place::host),
      hidden(int64_t{limits.wanted_rows} * spec.layer.feed_forward.width, Place::host),
      logits(int64_t{limits.wanted_rows} * spec.draft_vocabulary, Place::host),
      activations(limits.query_rows,
                  std::max({int64_t{spec.width}, heads.out_width(), int64_t{spec.layer.feed_forward.width}})) {}

BlockRows DraftForward::Impl::block_rows(float* stream, int64_t rows, const int32_t* live) const {
  return {.x = dense_rows(stream, rows, spec.width),
          .live_rows = live,
          .precise = false,
          .norm_eps = spec.norm_eps,
          .activations = &activations,
          .result = nullptr};
}

HeadRows DraftForward::Impl::query_rows(int64_t rows) const {
  return {.data = q.data(),
          .type = query_type_for(kv_type, Device::cpu),
          .rows = rows,
          .heads = heads.heads,
          .dim = heads.key_dim,
          .row_stride = heads.q_width()};
}

// The product over [ embedding | state ] is the sum of its two halves.
void DraftForward::Impl::store_keys(const attn::StepInputs& inputs, const kv::KvStore& store, int64_t rows,
                                    Exec& exec) const {
  const int32_t* live = inputs.query_rows;
  ops::rope_angles({.positions = inputs.positions,
                    .inverse_frequency = head.rope().inverse_frequency.data(),
                    .magnitude = head.rope().magnitude,
                    .half = spec.rope.rotary / 2,
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .live_rows = live},
                   exec);
  const BlockRows tokens = block_rows(embedded.data(), rows, live), states = block_rows(x.data(), rows, live);
  ops::embed({.table = head.embedding(), .ids = inputs.input_ids, .out = tokens.x, .live_rows = live}, exec);
  const Rows<float> out = dense_rows(qkv.data(), rows, heads.qkv_width());
  ops::matmul({.weights = &head.qkv_of_embedding(),
               .in = composed::normed_input(head.qkv_of_embedding(), head.embedding_norm(), tokens, exec),
               .out = out,
               .live_rows = live},
              exec);
  ops::matmul({.weights = &head.layer().qkv,
               .in = composed::normed_input(head.layer().qkv, head.layer().attention_norm, states, exec),
               .out = out,
               .store = ops::Store::add,
               .live_rows = live},
              exec);
  composed::rotate_and_store({.spec = &spec.layer,
                              .weights = &head.layer(),
                              .rows = states,
                              .rope = spec.rope,
                              .cos = cos.data(),
                              .sin = sin.data(),
                              .qkv = out,
                              .q = query_rows(rows),
                              .kv = store.layer(0),
                              .slots = inputs.slot_mapping},
                             exec);
}

void DraftForward::Impl::attend(const attn::StepShape& shape, const attn::MetadataArena& arena,
                                const kv::KvStore& store, Exec& exec) const {
  const HeadRows queries = query_rows(shape.query_rows);
  attn::attend({.keys = attn::key_view(arena, shape, attn::LayerKind::full),
                .arena = &arena,
                .kv = store.layer(0),
                .q = {queries.data, queries.type, queries.rows, queries.heads, queries.dim, queries.row_stride},
                .out = {.data = reinterpret_cast<std::byte*>(attended.data()),
                        .type = Dtype::f32,
                        .rows = shape.query_rows,
                        .heads = heads.heads,
                        .dim = heads.value_dim,
                        .row_stride = heads.out_width()},
                .scale = heads.scale},
               exec);
}

void DraftForward::Impl::finish_wanted(const attn::StepInputs& inputs, int64_t rows, Exec& exec) const {
  const int32_t* live = inputs.wanted_count;
  const int64_t room = std::min<int64_t>(rows, limits.wanted_rows);
  const auto gather = [&](const Array<float>& from, const Array<float>& to, int64_t dim) {
    ops::gather_rows({.in = dense_rows(from.data(), rows, dim),
                      .index = inputs.wanted_rows,
                      .out = dense_rows(to.data(), room, dim),
                      .live_rows = live},
                     exec);
  };
  gather(x, wanted_x, spec.width);
  gather(attended, wanted_attended, heads.out_width());
  const BlockRows wanted = block_rows(wanted_x.data(), room, live);
  const BlockChoice blocks = choose_blocks(spec.layer, Device::cpu, room);
  const LayerWeights& layer = head.layer();
  blocks.attention_out.run({.spec = &spec.layer,
                            .weights = &layer.attention_out,
                            .norm_after = &layer.attention_post_norm,
                            .rows = wanted,
                            .in = dense_rows(wanted_attended.data(), room, heads.out_width())},
                           exec);
  const Rows<float> gated = dense_rows(hidden.data(), room, spec.layer.feed_forward.width);
  blocks.gate_up.run({.weights = &layer, .rows = wanted, .out = gated}, exec);
  blocks.down.run(
      {.spec = &spec.layer, .weights = &layer.down, .norm_after = &layer.ffn_post_norm, .rows = wanted, .in = gated},
      exec);
  blocks.head.run({.weights = &head.output(),
                   .norm = &head.output_norm(),
                   .rows = wanted,
                   .normed = dense_rows(wanted_normed.data(), room, spec.width),
                   .logits = dense_rows(logits.data(), room, spec.draft_vocabulary),
                   .logits_rows = live,
                   .logits_scale = 1 / spec.temperature},
                  exec);
}

DraftForward::DraftForward(const EagleHead& head, const attn::Limits& limits, Dtype kv_type)
    : impl_(std::make_unique<Impl>(head, limits, kv_type)) {}
DraftForward::~DraftForward() = default;

Rows<float> DraftForward::states() const {
  return dense_rows(impl_->x.data(), impl_->limits.query_rows, impl_->spec.width);
}
Rows<const float> DraftForward::next_states() const {
  const Array<float>& handed_on = impl_->spec.norm_output ? impl_->wanted_normed : impl_->wanted_x;
  return dense_rows(handed_on.data(), impl_->limits.wanted_rows, impl_->spec.width);
}
Rows<const float> DraftForward::logits() const {
  return dense_rows(impl_->logits.data(), impl_->limits.wanted_rows, impl_->spec.draft_vocabulary);
}

void DraftForward::run(const attn::StepShape& shape, const attn::StepInputs& inputs, const attn::MetadataArena& arena,
                       const kv::KvStore& store, Exec& exec) const {
  check(shape.mode == attn::Mode::draft_extend || shape.mode == attn::Mode::decode, "a draft step in the mode ",
        shape.mode);
  check(shape.query_rows <= impl_->limits.query_rows, "a draft step of ", shape.query_rows, " rows, up to ",
        impl_->limits.query_rows, " have room");
  impl_->store_keys(inputs, store, shape.query_rows, exec);
  if (*inputs.wanted_count == 0) return;
  attn::write_metadata(shape, inputs, arena, exec);
  impl_->attend(shape, arena, store, exec);
  impl_->finish_wanted(inputs, shape.query_rows, exec);
}

}  // namespace quire::model
