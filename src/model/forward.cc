#include "model/forward.h"

#include <algorithm>
#include <cmath>

#include "attn/attention.h"
#include "attn/write_metadata.h"
#include "base/buffer.h"
#include "base/check.h"
#include "ops/activations.h"
#include "ops/embed.h"
#include "ops/matmul.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quire::model {
namespace {

// [count] at a fixed address, never filled.
template <class T>
class Array {
 public:
  explicit Array(int64_t count) : memory_(static_cast<size_t>(count) * sizeof(T)) {}
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }

 private:
  Buffer memory_;
};

// Queries in the keys' own narrow type let attention use dots of pairs; fp8 keys are widened, so f32 loses nothing.
Dtype query_type_for(Dtype kv_type) { return kv_type == Dtype::f8e4m3 ? Dtype::f32 : kv_type; }

int64_t query_width(const ModelConfig& config) { return int64_t{config.heads} * config.head_dim; }
int64_t qkv_width(const ModelConfig& config) {
  return (int64_t{config.heads} + 2 * int64_t{config.kv_heads}) * config.head_dim;
}

const attn::Limits& checked(const attn::Limits& limits) {
  check(limits.query_rows > 0 && limits.wanted_rows > 0 && limits.wanted_rows <= limits.query_rows, "a step of up to ",
        limits.query_rows, " rows of which ", limits.wanted_rows, " are wanted");
  return limits;
}

void check_store(const kv::KvLayout& layout, const ModelConfig& config, Dtype type) {
  check(layout.layers == config.layers && layout.kv_heads == config.kv_heads && layout.key_dim == config.head_dim &&
            layout.value_dim == config.head_dim && layout.type == type && !layout.latent,
        "the store is not made for keys and values in ", type, " of ", config, ": ", layout);
}

// What the operations of one call share.
struct Call {
  const attn::StepInputs& inputs;
  int64_t rows;  // room for the step's query rows
  attn::KeyView keys;
  const attn::MetadataArena& arena;
  const kv::KvStore& store;
  Exec& exec;
};

Rows<float> dense_rows(float* data, int64_t rows, int64_t dim) { return {data, rows, dim, dim}; }

}  // namespace

kv::KvLayout kv_layout(const ModelConfig& config, int32_t pages, PageSize page_size, Dtype type) {
  return {.layers = config.layers,
          .pages = pages,
          .page_size = page_size,
          .type = type,
          .kv_heads = config.kv_heads,
          .key_dim = config.head_dim,
          .value_dim = config.head_dim};
}

attn::Limits attention_limits(const ModelConfig& config, attn::Limits limits) {
  limits.heads = config.heads;
  limits.kv_heads = config.kv_heads;
  limits.key_dim = limits.value_dim = config.head_dim;
  return limits;
}

namespace {

// Rows on their way through a layer's second half: the step's own, or the wanted ones of the last layer.
struct Half {
  Rows<float> x;         // [rows, width] the residual stream
  Rows<float> attended;  // [rows, heads * head_dim]
  Rows<float> hidden;    // [rows, ffn_width]
  const int32_t* live_rows;
  bool precise;  // products at twice the precision

  ops::Forms forms(const ops::PackedMatrix& weights) const {
    return precise ? weights.precise_forms() : weights.forms();
  }
};

}  // namespace

struct Forward::Impl {
  Impl(const Model& of, const attn::Limits& up_to, Dtype type);

  void run(const Call& call) const;  // after the metadata is written
  int64_t room_for(const attn::StepShape& shape) const;
  void start(const Call& call) const;
  void attention(int32_t layer, const Call& call) const;
  void rotate_and_store(int32_t layer, const Call& call) const;
  void attend(int32_t layer, const Call& call) const;
  void second_half(const LayerWeights& weights, const Half& half, Exec& exec) const;  // past attention
  void gather_wanted(const Call& call) const;
  void finish(const Call& call) const;
  Half step_half(const Call& call) const;
  Half wanted_half(const Call& call) const;
  Rows<float> wanted_rows(const Array<float>& memory, int64_t dim) const;
  ops::ActivationRows normed(Rows<const float> in, const std::vector<float>& weight, ops::Forms forms,
                             const int32_t* live, Exec& exec) const;
  HeadRows query_rows(const Call& call) const;
  ConstHeadRows kv_part(int32_t first_head, const Call& call) const;  // of the qkv rows
  ops::ActivationRows as_input(Rows<float> in, ops::Forms forms, const int32_t* live, Exec& exec) const;

  const Model& model;
  const ModelConfig& config;
  attn::Limits limits;
  Dtype kv_type;

  // One step's intermediate rows.
  Array<float> cos, sin;              // [rows, rotary / 2]
  Array<float> x;                     // [rows, width] the residual stream
  Array<float> qkv;                   // [rows, (heads + 2 * kv_heads) * head_dim]
  Array<std::byte> q;                 // [rows, heads, head_dim] in attention's type
  Array<float> attended;              // [rows, heads, head_dim]
  Array<float> hidden;                // [rows, ffn_width]
  ops::ActivationBuffer activations;  // what the next product reads; each is used up before the next is made

  // The wanted rows, past the last layer's attention.
  Array<float> wanted_x;         // [wanted_rows, width]
  Array<float> wanted_attended;  // [wanted_rows, heads, head_dim]
  Array<float> wanted_normed;    // [wanted_rows, width]
  Array<float> wanted_hidden;    // [wanted_rows, ffn_width]
  Array<float> logits;           // [wanted_rows, vocabulary]
};

Forward::Impl::Impl(const Model& of, const attn::Limits& up_to, Dtype type)
    : model(of),
      config(of.config()),
      limits(checked(up_to)),
      kv_type(type),
      cos(int64_t{limits.query_rows} * config.rotary / 2),
      sin(int64_t{limits.query_rows} * config.rotary / 2),
      x(int64_t{limits.query_rows} * config.width),
      qkv(limits.query_rows * qkv_width(config)),
      q(limits.query_rows * query_width(config) * size_of(query_type_for(type))),
      attended(limits.query_rows * query_width(config)),
      hidden(int64_t{limits.query_rows} * config.ffn_width),
      activations(limits.query_rows, std::max({int64_t{config.width}, query_width(config), int64_t{config.ffn_width}})),
      wanted_x(int64_t{limits.wanted_rows} * config.width),
      wanted_attended(limits.wanted_rows * query_width(config)),
      wanted_normed(int64_t{limits.wanted_rows} * config.width),
      wanted_hidden(int64_t{limits.wanted_rows} * config.ffn_width),
      logits(int64_t{limits.wanted_rows} * config.vocabulary) {}

// Rows past the live ones are cleared by attention: a shape should have no more than the step can need.
int64_t Forward::Impl::room_for(const attn::StepShape& shape) const {
  check(shape.mode == attn::Mode::decode || shape.mode == attn::Mode::extend, "a step in the mode ", shape.mode);
  const int64_t room = shape.query_rows;
  check(room >= 0 && room <= limits.query_rows, "a step of ", room, " rows, up to ", limits.query_rows, " have room");
  return room;
}

void Forward::Impl::run(const Call& call) const {
  start(call);
  const int32_t last = config.layers - 1;
  for (int32_t layer = 0; layer < last; ++layer) {
    attention(layer, call);
    second_half(model.layers()[layer], step_half(call), call.exec);
  }
  attention(last, call);
  gather_wanted(call);
  second_half(model.layers()[last], wanted_half(call), call.exec);
  finish(call);
}

void Forward::Impl::start(const Call& call) const {
  ops::rope_angles({.positions = call.inputs.positions,
                    .inverse_frequency = model.rope().inverse_frequency.data(),
                    .magnitude = model.rope().magnitude,
                    .half = config.rotary / 2,
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .live_rows = call.inputs.query_rows},
                   call.exec);
  ops::embed({.table = model.embedding(),
              .ids = call.inputs.input_ids,
              .out = dense_rows(x.data(), call.rows, config.width),
              .live_rows = call.inputs.query_rows},
             call.exec);
}

ops::ActivationRows Forward::Impl::normed(Rows<const float> in, const std::vector<float>& weight, ops::Forms forms,
                                          const int32_t* live, Exec& exec) const {
  const ops::ActivationRows out = activations.view(config.width, forms);
  ops::rms_norm({.in = in, .weight = weight.data(), .eps = config.norm_eps, .out = out, .live_rows = live}, exec);
  return out;
}

// Dense weights read the rows where they lie; quantised ones want them quantised.
ops::ActivationRows Forward::Impl::as_input(Rows<float> in, ops::Forms forms, const int32_t* live, Exec& exec) const {
  ops::ActivationRows out = activations.view(in.dim, forms);
  if (forms.quantised())
    ops::quantise({.in = in, .out = out, .live_rows = live}, exec);
  else
    out.f32 = in.data;
  return out;
}

void Forward::Impl::attention(int32_t layer, const Call& call) const {
  const LayerWeights& weights = model.layers()[layer];
  ops::matmul({.weights = &weights.qkv,
               .in = normed(dense_rows(x.data(), call.rows, config.width), weights.attention_norm, weights.qkv.forms(),
                            call.inputs.query_rows, call.exec),
               .out = dense_rows(qkv.data(), call.rows, qkv_width(config)),
               .bias = weights.qkv_bias.empty() ? nullptr : weights.qkv_bias.data(),
               .live_rows = call.inputs.query_rows},
              call.exec);
  rotate_and_store(layer, call);
  attend(layer, call);
}

void Forward::Impl::rotate_and_store(int32_t layer, const Call& call) const {
  const LayerWeights& weights = model.layers()[layer];
  ops::rope({.qkv = dense_rows(qkv.data(), call.rows, qkv_width(config)),
             .heads = config.heads,
             .kv_heads = config.kv_heads,
             .dim = config.head_dim,
             .half = config.rotates[layer] ? config.rotary / 2 : 0,
             .adjacent_pairs = config.adjacent_pairs,
             .cos = cos.data(),
             .sin = sin.data(),
             .q_norm = weights.q_norm.empty() ? nullptr : weights.q_norm.data(),
             .k_norm = weights.k_norm.empty() ? nullptr : weights.k_norm.data(),
             .norm_eps = config.norm_eps,
             .q = query_rows(call),
             .live_rows = call.inputs.query_rows},
            call.exec);
  kv::store_rows({.layer = call.store.layer(layer),
                  .keys = kv_part(config.heads, call),
                  .values = kv_part(config.heads + config.kv_heads, call),
                  .slots = call.inputs.slot_mapping,
                  .live_rows = call.inputs.query_rows},
                 call.exec);
}

HeadRows Forward::Impl::query_rows(const Call& call) const {
  return {.data = q.data(),
          .type = query_type_for(kv_type),
          .rows = call.rows,
          .heads = config.heads,
          .dim = config.head_dim,
          .row_stride = query_width(config)};
}

ConstHeadRows Forward::Impl::kv_part(int32_t first_head, const Call& call) const {
  return {.data = reinterpret_cast<const std::byte*>(qkv.data() + int64_t{first_head} * config.head_dim),
          .type = Dtype::f32,
          .rows = call.rows,
          .heads = config.kv_heads,
          .dim = config.head_dim,
          .row_stride = qkv_width(config)};
}

void Forward::Impl::attend(int32_t layer, const Call& call) const {
  const HeadRows queries = query_rows(call);
  HeadRows out = queries;
  out.data = reinterpret_cast<std::byte*>(attended.data());
  out.type = Dtype::f32;
  attn::attend({.keys = call.keys,
                .arena = &call.arena,
                .kv = call.store.layer(layer),
                .q = {queries.data, queries.type, queries.rows, queries.heads, queries.dim, queries.row_stride},
                .out = out,
                .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim))),
                .window = config.windowed[layer] ? config.window : -1},
               call.exec);
}

void Forward::Impl::second_half(const LayerWeights& weights, const Half& half, Exec& exec) const {
  ops::matmul({.weights = &weights.attention_out,
               .in = as_input(half.attended, half.forms(weights.attention_out), half.live_rows, exec),
               .out = half.x,
               .store = ops::Store::add,
               .live_rows = half.live_rows},
              exec);
  ops::matmul({.weights = &weights.gate_and_up,
               .in = normed(half.x, weights.ffn_norm, half.forms(weights.gate_and_up), half.live_rows, exec),
               .out = half.hidden,
               .store = ops::Store::silu_mul,
               .live_rows = half.live_rows},
              exec);
  ops::matmul({.weights = &weights.down,
               .in = as_input(half.hidden, half.forms(weights.down), half.live_rows, exec),
               .out = half.x,
               .store = ops::Store::add,
               .live_rows = half.live_rows},
              exec);
}

Half Forward::Impl::step_half(const Call& call) const {
  return {.x = dense_rows(x.data(), call.rows, config.width),
          .attended = dense_rows(attended.data(), call.rows, query_width(config)),
          .hidden = dense_rows(hidden.data(), call.rows, config.ffn_width),
          .live_rows = call.inputs.query_rows,
          .precise = false};
}

Half Forward::Impl::wanted_half(const Call& call) const {
  return {.x = wanted_rows(wanted_x, config.width),
          .attended = wanted_rows(wanted_attended, query_width(config)),
          .hidden = wanted_rows(wanted_hidden, config.ffn_width),
          .live_rows = call.inputs.wanted_count,
          .precise = true};
}

Rows<float> Forward::Impl::wanted_rows(const Array<float>& memory, int64_t dim) const {
  return dense_rows(memory.data(), limits.wanted_rows, dim);
}

void Forward::Impl::gather_wanted(const Call& call) const {
  const auto gather = [&](const Array<float>& from, const Array<float>& to, int64_t dim) {
    ops::gather_rows({.in = dense_rows(from.data(), call.rows, dim),
                      .index = call.inputs.wanted_rows,
                      .out = wanted_rows(to, dim),
                      .live_rows = call.inputs.wanted_count},
                     call.exec);
  };
  gather(x, wanted_x, config.width);
  gather(attended, wanted_attended, query_width(config));
}

void Forward::Impl::finish(const Call& call) const {
  ops::ActivationRows in = activations.view(config.width, model.output().precise_forms() | ops::Forms{.f32 = true});
  in.f32 = wanted_normed.data();
  ops::rms_norm({.in = wanted_rows(wanted_x, config.width),
                 .weight = model.output_norm().data(),
                 .eps = config.norm_eps,
                 .out = in,
                 .live_rows = call.inputs.wanted_count},
                call.exec);
  ops::matmul({.weights = &model.output(),
               .in = in,
               .out = wanted_rows(logits, config.vocabulary),
               .live_rows = call.inputs.logits_count},
              call.exec);
}

Forward::Forward(const Model& model, const attn::Limits& limits, Dtype kv_type)
    : impl_(std::make_unique<Impl>(model, limits, kv_type)) {}
Forward::~Forward() = default;

Rows<const float> Forward::hidden() const { return impl_->wanted_rows(impl_->wanted_normed, impl_->config.width); }
Rows<const float> Forward::logits() const { return impl_->wanted_rows(impl_->logits, impl_->config.vocabulary); }

void Forward::run(const attn::StepShape& shape, const attn::StepInputs& inputs, const attn::MetadataArena& arena,
                  const kv::KvStore& store, Exec& exec) const {
  check_store(store.layout(), impl_->config, impl_->kv_type);
  const int64_t room = impl_->room_for(shape);
  attn::write_metadata(shape, inputs, arena, exec);
  impl_->run({.inputs = inputs,
              .rows = room,
              .keys = attn::key_view(arena, shape, attn::LayerKind::full),
              .arena = arena,
              .store = store,
              .exec = exec});
}

}  // namespace quire::model
