#include "model/forward.h"

#include <algorithm>
#include <cmath>

#include "attn/attention.h"
#include "attn/write_metadata.h"
#include "base/buffer.h"
#include "base/check.h"
#include "ops/activations.h"
#include "ops/embed.h"
#include "ops/fine.h"
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

const ForwardLimits& checked(const ForwardLimits& limits) {
  check(limits.rows > 0 && limits.logits_rows > 0 && limits.logits_rows <= limits.rows, "a step of up to ", limits.rows,
        " rows with the logits of ", limits.logits_rows);
  return limits;
}

void check_store(const kv::KvLayout& layout, const ModelConfig& config, Dtype type) {
  check(layout.layers == config.layers && layout.kv_heads == config.kv_heads && layout.key_dim == config.head_dim &&
            layout.value_dim == config.head_dim && layout.type == type && !layout.latent,
        "the store is not made for keys and values in ", type, " of ", config, ": ", layout);
}

// What the operations of one call share.
struct Call {
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

attn::Limits attention_limits(const ModelConfig& config, int32_t batch, int32_t context, PageSize page_size,
                              int32_t threads) {
  return {.batch = batch,
          .context = context,
          .page_size = page_size,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .key_dim = config.head_dim,
          .value_dim = config.head_dim,
          .threads = threads};
}

struct Forward::Impl {
  Impl(const Model& of, const ForwardLimits& up_to, Dtype type);

  void run(const Call& call) const;  // after the metadata is written
  int64_t room_for(const attn::StepShape& shape, const Exec& exec) const;
  void check_counts(int64_t room) const;
  void start(const Call& call) const;
  void attention(int32_t layer, const Call& call) const;
  void rotate_and_store(int32_t layer, const Call& call) const;
  void attend(int32_t layer, const Call& call) const;
  void feed_forward(int32_t layer, const Call& call) const;
  void finish(const Call& call) const;
  void fine_logits(const Call& call) const;
  ops::ActivationRows normed(const float* in, int64_t rows, const std::vector<float>& weight, ops::Forms forms,
                             const int32_t* live, Exec& exec) const;
  HeadRows query_rows(const Call& call) const;
  ConstHeadRows kv_part(int32_t first_head, const Call& call) const;  // of the qkv rows
  ops::ActivationRows as_input(const Array<float>& in, int64_t dim, ops::Forms forms, const Call& call) const;

  const Model& model;
  const ModelConfig& config;
  ForwardLimits limits;
  Dtype kv_type;

  Array<int32_t> counts, ids, positions, logits_index;
  Array<TokenSlot> slots;
  StepRows rows;

  // One step's intermediate rows.
  Array<float> cos, sin;              // [rows, rotary / 2]
  Array<float> x;                     // [rows, width] the residual stream
  Array<float> qkv;                   // [rows, (heads + 2 * kv_heads) * head_dim]
  Array<std::byte> q;                 // [rows, heads, head_dim] in attention's type
  Array<float> attended;              // [rows, heads, head_dim]
  Array<float> hidden;                // [rows, ffn_width]
  Array<float> wanted;                // [logits_rows, width]
  Array<float> normed_wanted;         // [logits_rows, width]
  Array<float> logit_halves;          // [2 * logits_rows, vocabulary] of rows that were split for precision
  Array<float> logits;                // [logits_rows, vocabulary]
  ops::ActivationBuffer activations;  // what the next product reads; each is used up before the next is made
};

Forward::Impl::Impl(const Model& of, const ForwardLimits& up_to, Dtype type)
    : model(of),
      config(of.config()),
      limits(checked(up_to)),
      kv_type(type),
      counts(3),
      ids(limits.rows),
      positions(limits.rows),
      logits_index(limits.logits_rows),
      slots(limits.rows),
      rows{.count = counts.data(),
           .ids = ids.data(),
           .positions = positions.data(),
           .slots = slots.data(),
           .logits_count = counts.data() + 1,
           .logits_index = logits_index.data()},
      cos(int64_t{limits.rows} * config.rotary / 2),
      sin(int64_t{limits.rows} * config.rotary / 2),
      x(int64_t{limits.rows} * config.width),
      qkv(limits.rows * qkv_width(config)),
      q(limits.rows * query_width(config) * size_of(query_type_for(type))),
      attended(limits.rows * query_width(config)),
      hidden(int64_t{limits.rows} * config.ffn_width),
      wanted(int64_t{limits.logits_rows} * config.width),
      normed_wanted(int64_t{limits.logits_rows} * config.width),
      logit_halves(int64_t{2} * limits.logits_rows * config.vocabulary),
      logits(int64_t{limits.logits_rows} * config.vocabulary),
      activations(std::max(limits.rows, 2 * limits.logits_rows),
                  std::max({int64_t{config.width}, query_width(config), int64_t{config.ffn_width}})) {}

// Rows past the live ones are cleared by attention, so a view has no more room than the step can need.
int64_t Forward::Impl::room_for(const attn::StepShape& shape, const Exec& exec) const {
  const bool decodes = shape.mode == attn::Mode::decode;
  check(decodes || shape.mode == attn::Mode::extend, "a step in the mode ", shape.mode);
  const int64_t room = decodes ? shape.captured : exec.capturing() ? limits.rows : *rows.count;
  check(room >= 0 && room <= limits.rows, "a step of ", room, " rows, up to ", limits.rows, " have room");
  if (!exec.capturing()) check_counts(room);
  return room;
}

void Forward::Impl::check_counts(int64_t room) const {
  check(*rows.count >= 0 && *rows.count <= room, *rows.count, " rows in a step of ", room);
  check(*rows.logits_count >= 0 && *rows.logits_count <= limits.logits_rows, "the logits of ", *rows.logits_count,
        " rows, up to ", limits.logits_rows, " have room");
}

void Forward::Impl::run(const Call& call) const {
  start(call);
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    attention(layer, call);
    feed_forward(layer, call);
  }
  finish(call);
}

void Forward::Impl::start(const Call& call) const {
  ops::rope_angles({.positions = rows.positions,
                    .inverse_frequency = model.rope().inverse_frequency.data(),
                    .magnitude = model.rope().magnitude,
                    .half = config.rotary / 2,
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .live_rows = rows.count},
                   call.exec);
  ops::embed({.table = model.embedding(),
              .ids = rows.ids,
              .out = dense_rows(x.data(), call.rows, config.width),
              .live_rows = rows.count},
             call.exec);
}

ops::ActivationRows Forward::Impl::normed(const float* in, int64_t in_rows, const std::vector<float>& weight,
                                          ops::Forms forms, const int32_t* live, Exec& exec) const {
  const ops::ActivationRows out = activations.view(config.width, forms);
  ops::rms_norm({.in = {in, in_rows, config.width, config.width},
                 .weight = weight.data(),
                 .eps = config.norm_eps,
                 .out = out,
                 .live_rows = live},
                exec);
  return out;
}

// Dense weights read the rows where they lie; quantised ones want them quantised.
ops::ActivationRows Forward::Impl::as_input(const Array<float>& in, int64_t dim, ops::Forms forms,
                                            const Call& call) const {
  ops::ActivationRows out = activations.view(dim, forms);
  if (forms.q8)
    ops::quantise({.in = dense_rows(in.data(), call.rows, dim), .out = out, .live_rows = rows.count}, call.exec);
  else
    out.f32 = in.data();
  return out;
}

void Forward::Impl::attention(int32_t layer, const Call& call) const {
  const LayerWeights& weights = model.layers()[layer];
  ops::matmul({.weights = &weights.qkv,
               .in = normed(x.data(), call.rows, weights.attention_norm, weights.qkv.forms(), rows.count, call.exec),
               .out = dense_rows(qkv.data(), call.rows, qkv_width(config)),
               .bias = weights.qkv_bias.empty() ? nullptr : weights.qkv_bias.data(),
               .live_rows = rows.count},
              call.exec);
  rotate_and_store(layer, call);
  attend(layer, call);
  ops::matmul({.weights = &weights.attention_out,
               .in = as_input(attended, query_width(config), weights.attention_out.forms(), call),
               .out = dense_rows(x.data(), call.rows, config.width),
               .store = ops::Store::add,
               .live_rows = rows.count},
              call.exec);
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
             .live_rows = rows.count},
            call.exec);
  kv::store_rows({.layer = call.store.layer(layer),
                  .keys = kv_part(config.heads, call),
                  .values = kv_part(config.heads + config.kv_heads, call),
                  .slots = rows.slots,
                  .live_rows = rows.count},
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

void Forward::Impl::feed_forward(int32_t layer, const Call& call) const {
  const LayerWeights& weights = model.layers()[layer];
  ops::matmul({.weights = &weights.gate_and_up,
               .in = normed(x.data(), call.rows, weights.ffn_norm, weights.gate_and_up.forms(), rows.count, call.exec),
               .out = dense_rows(hidden.data(), call.rows, config.ffn_width),
               .store = ops::Store::silu_mul,
               .live_rows = rows.count},
              call.exec);
  ops::matmul({.weights = &weights.down,
               .in = as_input(hidden, config.ffn_width, weights.down.forms(), call),
               .out = dense_rows(x.data(), call.rows, config.width),
               .store = ops::Store::add,
               .live_rows = rows.count},
              call.exec);
}

void Forward::Impl::finish(const Call& call) const {
  ops::gather_rows({.in = dense_rows(x.data(), call.rows, config.width),
                    .index = rows.logits_index,
                    .out = dense_rows(wanted.data(), limits.logits_rows, config.width),
                    .live_rows = rows.logits_count},
                   call.exec);
  if (model.output().forms().q8) return fine_logits(call);
  ops::matmul({.weights = &model.output(),
               .in = normed(wanted.data(), limits.logits_rows, model.output_norm(), model.output().forms(),
                            rows.logits_count, call.exec),
               .out = dense_rows(logits.data(), limits.logits_rows, config.vocabulary),
               .live_rows = rows.logits_count},
              call.exec);
}

// Rounding here goes straight into the logits, so quantised output matrices meet rows of twice the precision.
void Forward::Impl::fine_logits(const Call& call) const {
  int32_t* doubled = counts.data() + 2;
  ops::ActivationRows exact{};
  exact.forms = {.f32 = true};
  exact.rows = limits.logits_rows;
  exact.dim = config.width;
  exact.f32 = normed_wanted.data();
  ops::rms_norm({.in = dense_rows(wanted.data(), limits.logits_rows, config.width),
                 .weight = model.output_norm().data(),
                 .eps = config.norm_eps,
                 .out = exact,
                 .live_rows = rows.logits_count},
                call.exec);
  const ops::ActivationRows split = activations.view(config.width, {.q8 = true});
  ops::split_rows({.in = dense_rows(normed_wanted.data(), limits.logits_rows, config.width),
                   .out = split,
                   .live_rows = rows.logits_count,
                   .live_rows_of_out = doubled},
                  call.exec);
  const Rows<float> halves = dense_rows(logit_halves.data(), 2 * int64_t{limits.logits_rows}, config.vocabulary);
  ops::matmul({.weights = &model.output(), .in = split, .out = halves, .live_rows = doubled}, call.exec);
  ops::add_pairs({.in = halves,
                  .out = dense_rows(logits.data(), limits.logits_rows, config.vocabulary),
                  .live_rows = rows.logits_count},
                 call.exec);
}

Forward::Forward(const Model& model, const ForwardLimits& limits, Dtype kv_type)
    : impl_(std::make_unique<Impl>(model, limits, kv_type)) {}
Forward::~Forward() = default;

const StepRows& Forward::rows() const { return impl_->rows; }
Rows<const float> Forward::logits() const {
  return dense_rows(impl_->logits.data(), impl_->limits.logits_rows, impl_->config.vocabulary);
}

void Forward::run(const attn::StepShape& shape, const attn::StepInputs& inputs, const attn::MetadataArena& arena,
                  const kv::KvStore& store, Exec& exec) const {
  check_store(store.layout(), impl_->config, impl_->kv_type);
  const int64_t room = impl_->room_for(shape, exec);
  attn::write_metadata(shape, inputs, arena, exec);
  impl_->run({.rows = room,
              .keys = attn::key_view(arena, shape, attn::LayerKind::full),
              .arena = arena,
              .store = store,
              .exec = exec});
}

}  // namespace quire::model
