#include "model/forward.h"

#include <algorithm>
#include <set>

#include "attn/attention.h"
#include "attn/gpu_choice.h"
#include "attn/write_metadata.h"
#include "base/check.h"
#ifdef QUIRE_SLOWED_KERNELS
#include "base/cuda_call.h"
#endif
#include "model/blocks.h"
#include "model/blocks_composed.h"
#include "model/step_arrays.h"
#include "ops/embed.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace quire::model {
namespace {

// The widest input of a product.
int64_t widest_input(const ModelConfig& config) {
  return std::max({int64_t{config.width}, config.attention().out_width(), int64_t{config.ffn_width()}});
}

int64_t most_angles(const ModelConfig& config) {  // of a row, in all tables
  int64_t angles = 0;
  for (const RopeSpec& rope : config.ropes) angles += rope.rotary / 2;
  return angles;
}

// Of what logits take besides, which a GPU does without.
int64_t scratch_rows(const attn::Limits& limits) { return limits.device == Device::cpu ? limits.wanted_rows : 0; }

const attn::Limits& checked(const attn::Limits& limits) {
  check(limits.query_rows > 0 && limits.wanted_rows > 0 && limits.wanted_rows <= limits.query_rows, "a step of up to ",
        limits.query_rows, " rows of which ", limits.wanted_rows, " are wanted");
  return limits;
}

void check_store(const kv::KvLayout& layout, const ModelConfig& config, Dtype type) {
  const AttentionSpec& heads = config.attention();
  check(layout.layers == config.layer_count() && layout.kv_heads == heads.kv_heads && layout.key_dim == heads.key_dim &&
            layout.value_dim == heads.value_dim && layout.type == type && !layout.latent,
        "the store is not made for keys and values in ", type, " of ", config, ": ", layout);
}

// What the blocks of one call share.
struct Call {
  const attn::StepInputs& inputs;
  int64_t rows;  // room for the step's query rows
  attn::KeyView keys;
  const attn::MetadataArena& arena;
  const kv::KvStore& store;
  Exec& exec;
};

// Rows on their way through a layer: the step's own, or past the last layer's attention the wanted ones.
struct LayerRows {
  BlockRows block;
  float* attended;  // [rows, heads, value dim]
  float* hidden;    // [rows, feed-forward width]
};

}  // namespace

kv::KvLayout kv_layout(const ModelConfig& config, int32_t pages, PageSize page_size, Dtype type) {
  return {.layers = config.layer_count(),
          .pages = pages,
          .page_size = page_size,
          .type = type,
          .kv_heads = config.attention().kv_heads,
          .key_dim = config.attention().key_dim,
          .value_dim = config.attention().value_dim};
}

attn::Limits attention_limits(const ModelConfig& config, attn::Limits limits) {
  limits.heads = config.attention().heads;
  limits.kv_heads = config.attention().kv_heads;
  limits.key_dim = config.attention().key_dim;
  limits.value_dim = config.attention().value_dim;
  return limits;
}

struct Forward::Impl {
  Impl(const Model& of, const attn::Limits& up_to, Dtype type, bool is_deterministic,
       const FeatureProjection* of_features, const int32_t* of_feature_rows);

  void run(const Call& call) const;  // after the metadata is written
#ifdef QUIRE_SLOWED_KERNELS
  void spoil_buffers(Exec& exec) const;
#endif
  int64_t room_for(const attn::StepShape& shape) const;
  void start(const Call& call) const;
  void project_features(int32_t layer, const BlockRows& rows, Exec& exec) const;
  void gather_wanted(const Call& call) const;
  QkvBlock qkv_block(int32_t layer, const LayerRows& through, const Call& call) const;
  attn::AttendArgs attention_block(int32_t layer, const Call& call) const;
  ResidualBlock attention_out_block(int32_t layer, const LayerRows& through) const;
  GateUpBlock gate_up_block(int32_t layer, const LayerRows& through) const;
  ResidualBlock down_block(int32_t layer, const LayerRows& through) const;
  HeadBlock head_block(const LayerRows& through, const Call& call) const;
  LayerRows step_rows(const Call& call) const;
  int64_t wanted_room(const Call& call) const { return std::min<int64_t>(call.rows, limits.wanted_rows); }
  LayerRows wanted_rows(const Call& call) const;
  float* angles(const Array<float>& of, size_t rope) const;
  HeadRows query_rows(const Call& call) const;
  Rows<float> hidden_rows(int32_t layer, const LayerRows& through) const;

  const Model& model;
  const ModelConfig& config;
  const AttentionSpec& heads;  // the shape that all layers have
  attn::Limits limits;
  Dtype kv_type;
  bool deterministic;
  const FeatureProjection* features;  // null: nobody wants them
  const int32_t* feature_rows;        // null: of all rows
  Place place;                        // of what follows: the device's memory

  // One step's intermediate rows.
  Array<float> cos, sin;              // for each table of angles [rows, rotary / 2]
  Array<float> x;                     // [rows, width] the residual stream
  Array<float> qkv;                   // [rows, q, k and v heads]
  Array<std::byte> q;                 // [rows, heads, key dim] in attention's type
  Array<float> attended;              // [rows, heads, value dim]
  Array<float> hidden;                // [rows, ffn width]
  Array<float> result;                // [rows, width] of a product, before its norm
  Array<uint16_t> stream;             // [rows, width] x for the next norm
  Array<float> stream_squares;        // [rows, width / 16]
  ops::ActivationBuffer activations;  // what the next product reads; each is used up before the next is made

  Array<float> projected;  // [rows, width] features; none where nobody wants them

  // The wanted rows, past the last layer's attention.
  Array<float> wanted_x;         // [wanted_rows, width]
  Array<float> wanted_attended;  // [wanted_rows, heads, value dim]
  Array<float> wanted_normed;    // [wanted_rows, width]
  Array<float> wanted_hidden;    // [wanted_rows, ffn width]
  Array<float> logits;           // [wanted_rows, vocabulary]
  Array<float> logit_reach;      // [wanted_rows] on a CPU
  // ops::LogitsScratch, on a CPU.
  Array<float> rest_of_logits;
  Array<uint8_t> logit_marks;
  Array<float> largest_logits;
};

Forward::Impl::Impl(const Model& of, const attn::Limits& up_to, Dtype type, bool is_deterministic,
                    const FeatureProjection* of_features, const int32_t* of_feature_rows)
    : model(of),
      config(of.config()),
      heads(config.attention()),
      limits(checked(up_to)),
      kv_type(type),
      deterministic(is_deterministic),
      features(of_features),
      feature_rows(of_feature_rows),
      place(place_of(limits.device)),
      cos(limits.query_rows * most_angles(config), place),
      sin(limits.query_rows * most_angles(config), place),
      x(int64_t{limits.query_rows} * config.width, place),
      qkv(limits.query_rows * heads.qkv_width(), place),
      q(limits.query_rows * heads.q_width() * size_of(query_type_for(type, limits.device)), place),
      attended(limits.query_rows * heads.out_width(), place),
      hidden(int64_t{limits.query_rows} * config.ffn_width(), place),
      result(int64_t{limits.query_rows} * config.width, place),
      stream(int64_t{limits.query_rows} * config.width, place),
      stream_squares(int64_t{limits.query_rows} * config.width / ops::kStreamGroup, place),
      activations(limits.query_rows, widest_input(config), place),
      projected(features ? int64_t{limits.query_rows} * config.width : 0, place),
      wanted_x(int64_t{limits.wanted_rows} * config.width, place),
      wanted_attended(limits.wanted_rows * heads.out_width(), place),
      wanted_normed(int64_t{limits.wanted_rows} * config.width, place),
      wanted_hidden(int64_t{limits.wanted_rows} * config.ffn_width(), place),
      logits(int64_t{limits.wanted_rows} * config.vocabulary, place),
      logit_reach(scratch_rows(limits), Place::host),
      rest_of_logits(scratch_rows(limits) * config.vocabulary, Place::host),
      logit_marks(scratch_rows(limits) * ops::logit_groups(config.vocabulary), Place::host),
      largest_logits(scratch_rows(limits), Place::host) {
  std::fill_n(logit_reach.data(), scratch_rows(limits), ops::kUsualReach);
}

// Rows past the live ones are cleared by attention: a shape should have no more than the step can need.
int64_t Forward::Impl::room_for(const attn::StepShape& shape) const {
  check(shape.mode == attn::Mode::decode || shape.mode == attn::Mode::extend || shape.mode == attn::Mode::verify_tree,
        "a step in the mode ", shape.mode);
  const int64_t room = shape.query_rows;
  check(room >= 0 && room <= limits.query_rows, "a step of ", room, " rows, up to ", limits.query_rows, " have room");
  return room;
}

void Forward::Impl::run(const Call& call) const {
  Exec& exec = call.exec;
  start(call);
  LayerRows through = step_rows(call);
  const int32_t last = config.layer_count() - 1;
  for (int32_t layer = 0; layer <= last; ++layer) {
    const LayerWeights& weights = model.layers()[layer];
    const BlockChoice blocks = choose_blocks(config.layers[layer], exec.device(), call.rows, forms_of(weights),
                                             deterministic ? 0 : most_fused_rows(weights));
    through.block.streamed &= blocks.streams;
    if (features) project_features(layer, through.block, exec);
    blocks.qkv.run(qkv_block(layer, through, call), exec);
    blocks.attention.run(attention_block(layer, call), exec);
    if (layer == last) {
      gather_wanted(call);
      through = wanted_rows(call);
    }
    blocks.attention_out.run(attention_out_block(layer, through), exec);
    through.block.streamed = blocks.streams;
    blocks.gate_up.run(gate_up_block(layer, through), exec);
    blocks.down.run(down_block(layer, through), exec);
    if (layer == last) blocks.head.run(head_block(through, call), exec);
  }
}

#ifdef QUIRE_SLOWED_KERNELS
// What a kernel reads before it was written in this step is no number.
void Forward::Impl::spoil_buffers(Exec& exec) const {
  if (!exec.stream()) return;
  const auto spoil = [&](void* memory, size_t bytes) {
    if (bytes == 0) return;
    quire::cuda::check_cuda(cudaMemsetAsync(memory, 0xff, bytes, quire::cuda::stream_of(exec)), "no memory is filled");
  };
  for (const Buffer* buffer :
       {&cos.memory(), &sin.memory(), &x.memory(), &qkv.memory(), &q.memory(), &attended.memory(), &hidden.memory(),
        &result.memory(), &stream.memory(), &stream_squares.memory(), &wanted_x.memory(), &wanted_attended.memory(),
        &wanted_normed.memory(), &wanted_hidden.memory(), &logits.memory(), &projected.memory()})
    spoil(buffer->data(), buffer->size());
  const ops::ActivationRows narrow = activations.view(widest_input(config), {.bf16 = true});
  spoil(narrow.bf16, static_cast<size_t>(narrow.rows * narrow.dim) * sizeof(uint16_t));
}
#endif

void Forward::Impl::start(const Call& call) const {
  for (size_t rope = 0; rope < config.ropes.size(); ++rope)
    ops::rope_angles({.positions = call.inputs.positions,
                      .inverse_frequency = model.rope_frequencies()[rope].data(),
                      .magnitude = model.ropes()[rope].magnitude,
                      .half = config.ropes[rope].rotary / 2,
                      .cos = angles(cos, rope),
                      .sin = angles(sin, rope),
                      .live_rows = call.inputs.query_rows},
                     call.exec);
  ops::embed({.table = model.embedding(),
              .ids = call.inputs.input_ids,
              .out = dense_rows(x.data(), call.rows, config.width),
              .scale = config.embedding_scale,
              .live_rows = call.inputs.query_rows},
             call.exec);
}

// What enters this layer, where it is one of the features.
void Forward::Impl::project_features(int32_t layer, const BlockRows& rows, Exec& exec) const {
  const auto found = std::find(features->layers.begin(), features->layers.end(), layer);
  if (found == features->layers.end()) return;
  const auto i = static_cast<size_t>(found - features->layers.begin());
  BlockRows normed = rows;
  normed.norm_eps = features->norm_eps;
  if (feature_rows) normed.live_rows = feature_rows;
  composed::multiply({.weights = &features->matrix[i],
                      .in = {},
                      .out = dense_rows(projected.data(), rows.x.rows, config.width),
                      .store = i == 0 ? ops::Store::set : ops::Store::add,
                      .live_rows = normed.live_rows},
                     rows.x, features->norms[i], normed, exec);
}

void Forward::Impl::gather_wanted(const Call& call) const {
  const auto gather = [&](const Array<float>& from, const Array<float>& to, int64_t dim) {
    ops::gather_rows({.in = dense_rows(from.data(), call.rows, dim),
                      .index = call.inputs.wanted_rows,
                      .out = dense_rows(to.data(), wanted_room(call), dim),
                      .live_rows = call.inputs.wanted_count},
                     call.exec);
  };
  gather(x, wanted_x, config.width);
  gather(attended, wanted_attended, heads.out_width());
}

LayerRows Forward::Impl::step_rows(const Call& call) const {
  return {.block = {.x = dense_rows(x.data(), call.rows, config.width),
                    .live_rows = call.inputs.query_rows,
                    .precise = false,
                    .norm_eps = config.norm_eps,
                    .activations = &activations,
                    .result = result.data(),
                    .stream = stream.data(),
                    .stream_squares = stream_squares.data(),
                    .deterministic = deterministic},
          .attended = attended.data(),
          .hidden = hidden.data()};
}

LayerRows Forward::Impl::wanted_rows(const Call& call) const {
  return {.block = {.x = dense_rows(wanted_x.data(), wanted_room(call), config.width),
                    .live_rows = call.inputs.wanted_count,
                    .precise = true,
                    .norm_eps = config.norm_eps,
                    .activations = &activations,
                    .result = result.data(),
                    .stream = stream.data(),
                    .stream_squares = stream_squares.data(),
                    .deterministic = deterministic},
          .attended = wanted_attended.data(),
          .hidden = wanted_hidden.data()};
}

QkvBlock Forward::Impl::qkv_block(int32_t layer, const LayerRows& through, const Call& call) const {
  const int32_t table = config.layers[layer].attention.rope;
  return {.spec = &config.layers[layer],
          .weights = &model.layers()[layer],
          .rows = through.block,
          .rope = table < 0 ? RopeSpec{} : config.ropes[table],
          .cos = table < 0 ? nullptr : angles(cos, table),
          .sin = table < 0 ? nullptr : angles(sin, table),
          .qkv = dense_rows(qkv.data(), call.rows, heads.qkv_width()),
          .q = query_rows(call),
          .kv = call.store.layer(layer),
          .slots = call.inputs.slot_mapping};
}

attn::AttendArgs Forward::Impl::attention_block(int32_t layer, const Call& call) const {
  const HeadRows queries = query_rows(call);
  return {.keys = call.keys,
          .arena = &call.arena,
          .kv = call.store.layer(layer),
          .q = {queries.data, queries.type, queries.rows, queries.heads, queries.dim, queries.row_stride},
          .out = {.data = reinterpret_cast<std::byte*>(attended.data()),
                  .type = Dtype::f32,
                  .rows = call.rows,
                  .heads = heads.heads,
                  .dim = heads.value_dim,
                  .row_stride = heads.out_width()},
          .scale = config.layers[layer].attention.scale,
          .window = config.layers[layer].attention.window,
          .deterministic = deterministic,
          .keys_are_settled = true};  // the kernel before stored this layer's keys and values
}

ResidualBlock Forward::Impl::attention_out_block(int32_t layer, const LayerRows& through) const {
  return {.spec = &config.layers[layer],
          .weights = &model.layers()[layer].attention_out,
          .norm_after = &model.layers()[layer].attention_post_norm,
          .rows = through.block,
          .in = dense_rows(through.attended, through.block.x.rows, heads.out_width()),
          .next_norm = &model.layers()[layer].ffn_norm};
}

GateUpBlock Forward::Impl::gate_up_block(int32_t layer, const LayerRows& through) const {
  return {.weights = &model.layers()[layer], .rows = through.block, .out = hidden_rows(layer, through)};
}

ResidualBlock Forward::Impl::down_block(int32_t layer, const LayerRows& through) const {
  return {.spec = &config.layers[layer],
          .weights = &model.layers()[layer].down,
          .norm_after = &model.layers()[layer].ffn_post_norm,
          .rows = through.block,
          .in = hidden_rows(layer, through),
          .next_norm = layer + 1 < config.layer_count() ? &model.layers()[layer + 1].attention_norm : nullptr};
}

HeadBlock Forward::Impl::head_block(const LayerRows& through, const Call& call) const {
  return {.weights = &model.output(),
          .norm = &model.output_norm(),
          .rows = through.block,
          .normed = dense_rows(wanted_normed.data(), wanted_room(call), config.width),
          .logits = dense_rows(logits.data(), wanted_room(call), config.vocabulary),
          .logits_rows = call.inputs.logits_count,
          .logits_scale = config.logits_scale,
          .logit_reach = logit_reach.data(),
          .scratch = {.rest = dense_rows(rest_of_logits.data(), wanted_room(call), config.vocabulary),
                      .marks = logit_marks.data(),
                      .largest = largest_logits.data()}};
}

// One table's part of the cosines or sines.
float* Forward::Impl::angles(const Array<float>& of, size_t rope) const {
  int64_t before = 0;
  for (size_t i = 0; i < rope; ++i) before += config.ropes[i].rotary / 2;
  return of.data() + limits.query_rows * before;
}

HeadRows Forward::Impl::query_rows(const Call& call) const {
  return {.data = q.data(),
          .type = query_type_for(kv_type, limits.device),
          .rows = call.rows,
          .heads = heads.heads,
          .dim = heads.key_dim,
          .row_stride = heads.q_width()};
}

Rows<float> Forward::Impl::hidden_rows(int32_t layer, const LayerRows& through) const {
  return dense_rows(through.hidden, through.block.x.rows, config.layers[layer].feed_forward.width);
}

Forward::Forward(const Model& model, const attn::Limits& limits, Dtype kv_type, bool deterministic,
                 const FeatureProjection* features, const int32_t* feature_rows)
    : impl_(std::make_unique<Impl>(model, limits, kv_type, deterministic, features, feature_rows)) {}
Forward::~Forward() = default;

Rows<const float> Forward::hidden() const {
  return dense_rows(impl_->wanted_normed.data(), impl_->limits.wanted_rows, impl_->config.width);
}
Rows<const float> Forward::logits() const {
  return dense_rows(impl_->logits.data(), impl_->limits.wanted_rows, impl_->config.vocabulary);
}

std::span<float> Forward::logit_reach() const {
  return {impl_->logit_reach.data(), static_cast<size_t>(scratch_rows(impl_->limits))};
}

Rows<const float> Forward::features() const {
  return dense_rows(impl_->projected.data(), impl_->features ? impl_->limits.query_rows : 0, impl_->config.width);
}

void Forward::run(const attn::StepShape& shape, const attn::StepInputs& inputs, const attn::MetadataArena& arena,
                  const kv::KvStore& store, Exec& exec) const {
  check_store(store.layout(), impl_->config, impl_->kv_type);
  const int64_t room = impl_->room_for(shape);
#ifdef QUIRE_SLOWED_KERNELS
  impl_->spoil_buffers(exec);
#endif
  attn::write_metadata(shape, inputs, arena, exec);
  impl_->run({.inputs = inputs,
              .rows = room,
              .keys = attn::key_view(arena, shape, attn::LayerKind::full),
              .arena = arena,
              .store = store,
              .exec = exec});
}

std::vector<int32_t> Forward::decode_contexts(const attn::StepShape& shape, const attn::MetadataArena& arena,
                                              const kv::KvStore& store, Exec& exec) const {
  if (exec.device() == Device::cpu) return {arena.limits().context};
  const attn::StepInputs no_inputs{};
  const Call call{.inputs = no_inputs,
                  .rows = impl_->room_for(shape),
                  .keys = attn::key_view(arena, shape, attn::LayerKind::full),
                  .arena = arena,
                  .store = store,
                  .exec = exec};
  std::set<int32_t> contexts;  // of all layers, whose windows may differ
  for (int32_t layer = 0; layer < impl_->config.layer_count(); ++layer)
    for (const int32_t context : attn::decode_contexts(impl_->attention_block(layer, call), attn::cuda::device()))
      contexts.insert(context);
  return {contexts.begin(), contexts.end()};
}

}  // namespace quire::model
