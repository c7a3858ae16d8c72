#include "model/forward.h"

#include <algorithm>

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

// The widest input of a product.
int64_t widest_input(const ModelConfig& config) {
  return std::max({int64_t{config.width}, config.attention().out_width(), int64_t{config.ffn_width()}});
}

int64_t most_angles(const ModelConfig& config) {  // of a row, in all tables
  int64_t angles = 0;
  for (const RopeSpec& rope : config.ropes) angles += rope.rotary / 2;
  return angles;
}

const ForwardLimits& checked(const ForwardLimits& limits) {
  check(limits.rows > 0 && limits.wanted_rows > 0 && limits.wanted_rows <= limits.rows, "a step of up to ", limits.rows,
        " rows of which ", limits.wanted_rows, " are wanted");
  return limits;
}

void check_store(const kv::KvLayout& layout, const ModelConfig& config, Dtype type) {
  const AttentionSpec& heads = config.attention();
  check(layout.layers == config.layer_count() && layout.kv_heads == heads.kv_heads && layout.key_dim == heads.key_dim &&
            layout.value_dim == heads.value_dim && layout.type == type && !layout.latent,
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
  return {.layers = config.layer_count(),
          .pages = pages,
          .page_size = page_size,
          .type = type,
          .kv_heads = config.attention().kv_heads,
          .key_dim = config.attention().key_dim,
          .value_dim = config.attention().value_dim};
}

attn::Limits attention_limits(const ModelConfig& config, int32_t batch, int32_t context, PageSize page_size,
                              int32_t threads) {
  return {.batch = batch,
          .context = context,
          .page_size = page_size,
          .heads = config.attention().heads,
          .kv_heads = config.attention().kv_heads,
          .key_dim = config.attention().key_dim,
          .value_dim = config.attention().value_dim,
          .threads = threads};
}

namespace {

// A product of wanted rows.
struct FineProduct {
  const ops::PackedMatrix& weights;
  Rows<float> in, out;
  ops::Store store = ops::Store::set;
  const int32_t* live_rows;
};

}  // namespace

struct Forward::Impl {
  Impl(const Model& of, const ForwardLimits& up_to, Dtype type);

  void run(const Call& call) const;  // after the metadata is written
  int64_t room_for(const attn::StepShape& shape, const Exec& exec) const;
  void check_counts(int64_t room) const;
  float* angles(const Array<float>& of, size_t rope) const;
  void start(const Call& call) const;
  void attention(int32_t layer, const Call& call) const;
  void rotate_and_store(int32_t layer, const Call& call) const;
  void attend(int32_t layer, const Call& call) const;
  void project(int32_t layer, const Call& call) const;  // attention's result
  void feed_forward(int32_t layer, const Call& call) const;
  void gather_wanted(const Call& call) const;
  void finish_layer(const LayerWeights& weights, Exec& exec) const;  // the last one, for the wanted rows
  void finish(Exec& exec) const;
  Rows<float> wanted_rows(const Array<float>& memory, int64_t dim) const;
  void norm_wanted(const Array<float>& in, const std::vector<float>& weight, Exec& exec) const;
  void fine_product(const FineProduct& product, Exec& exec) const;
  ops::ActivationRows normed(const float* in, int64_t rows, const std::vector<float>& weight, ops::Forms forms,
                             const int32_t* live, Exec& exec) const;
  HeadRows query_rows(const Call& call) const;
  ConstHeadRows kv_part(int32_t first_head, const Call& call) const;  // of the qkv rows
  ops::ActivationRows as_input(const Array<float>& in, int64_t dim, ops::Forms forms, const Call& call) const;

  const Model& model;
  const ModelConfig& config;
  const AttentionSpec& heads;  // the shape that all layers have
  ForwardLimits limits;
  Dtype kv_type;

  Array<int32_t> counts, ids, positions, wanted_index;
  Array<TokenSlot> slots;
  StepRows rows;

  // One step's intermediate rows.
  Array<float> cos, sin;              // for each table of angles [rows, rotary / 2]
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
  ops::FineScratch fine;
};

Forward::Impl::Impl(const Model& of, const ForwardLimits& up_to, Dtype type)
    : model(of),
      config(of.config()),
      heads(config.attention()),
      limits(checked(up_to)),
      kv_type(type),
      counts(3),
      ids(limits.rows),
      positions(limits.rows),
      wanted_index(limits.wanted_rows),
      slots(limits.rows),
      rows{.count = counts.data(),
           .ids = ids.data(),
           .positions = positions.data(),
           .slots = slots.data(),
           .wanted_count = counts.data() + 1,
           .wanted_index = wanted_index.data(),
           .logits_count = counts.data() + 2},
      cos(limits.rows * most_angles(config)),
      sin(limits.rows * most_angles(config)),
      x(int64_t{limits.rows} * config.width),
      qkv(limits.rows * heads.qkv_width()),
      q(limits.rows * heads.q_width() * size_of(query_type_for(type))),
      attended(limits.rows * heads.out_width()),
      hidden(int64_t{limits.rows} * config.ffn_width()),
      activations(limits.rows, widest_input(config)),
      wanted_x(int64_t{limits.wanted_rows} * config.width),
      wanted_attended(limits.wanted_rows * heads.out_width()),
      wanted_normed(int64_t{limits.wanted_rows} * config.width),
      wanted_hidden(int64_t{limits.wanted_rows} * config.ffn_width()),
      logits(int64_t{limits.wanted_rows} * config.vocabulary),
      fine(limits.wanted_rows, widest_input(config),
           std::max({int64_t{config.width}, 2 * int64_t{config.ffn_width()}, int64_t{config.vocabulary}})) {}

// Rows past the live ones are cleared by attention: a shape should have no more than the step can need.
int64_t Forward::Impl::room_for(const attn::StepShape& shape, const Exec& exec) const {
  check(shape.mode == attn::Mode::decode || shape.mode == attn::Mode::extend, "a step in the mode ", shape.mode);
  const int64_t room = shape.query_rows;
  check(room >= 0 && room <= limits.rows, "a step of ", room, " rows, up to ", limits.rows, " have room");
  if (!exec.capturing()) check_counts(room);
  return room;
}

void Forward::Impl::check_counts(int64_t room) const {
  check(*rows.count >= 0 && *rows.count <= room, *rows.count, " rows in a step of ", room);
  check(*rows.wanted_count >= 0 && *rows.wanted_count <= limits.wanted_rows, *rows.wanted_count, " wanted rows, up to ",
        limits.wanted_rows, " have room");
  check(*rows.logits_count >= 0 && *rows.logits_count <= *rows.wanted_count, "the logits of ", *rows.logits_count,
        " rows, of ", *rows.wanted_count, " wanted ones");
}

void Forward::Impl::run(const Call& call) const {
  start(call);
  const int32_t last = config.layer_count() - 1;
  for (int32_t layer = 0; layer < last; ++layer) {
    attention(layer, call);
    project(layer, call);
    feed_forward(layer, call);
  }
  attention(last, call);
  gather_wanted(call);
  finish_layer(model.layers()[last], call.exec);
  finish(call.exec);
}

// One table's part of the cosines or sines.
float* Forward::Impl::angles(const Array<float>& of, size_t rope) const {
  int64_t before = 0;
  for (size_t i = 0; i < rope; ++i) before += config.ropes[i].rotary / 2;
  return of.data() + limits.rows * before;
}

void Forward::Impl::start(const Call& call) const {
  for (size_t rope = 0; rope < config.ropes.size(); ++rope)
    ops::rope_angles({.positions = rows.positions,
                      .inverse_frequency = model.ropes()[rope].inverse_frequency.data(),
                      .magnitude = model.ropes()[rope].magnitude,
                      .half = config.ropes[rope].rotary / 2,
                      .cos = angles(cos, rope),
                      .sin = angles(sin, rope),
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
               .out = dense_rows(qkv.data(), call.rows, heads.qkv_width()),
               .bias = weights.qkv_bias.empty() ? nullptr : weights.qkv_bias.data(),
               .live_rows = rows.count},
              call.exec);
  rotate_and_store(layer, call);
  attend(layer, call);
}

void Forward::Impl::project(int32_t layer, const Call& call) const {
  const LayerWeights& weights = model.layers()[layer];
  ops::matmul({.weights = &weights.attention_out,
               .in = as_input(attended, heads.out_width(), weights.attention_out.forms(), call),
               .out = dense_rows(x.data(), call.rows, config.width),
               .store = ops::Store::add,
               .live_rows = rows.count},
              call.exec);
}

void Forward::Impl::rotate_and_store(int32_t layer, const Call& call) const {
  const LayerWeights& weights = model.layers()[layer];
  const int32_t table = config.layers[layer].attention.rope;
  const RopeSpec rope = table < 0 ? RopeSpec{} : config.ropes[table];
  ops::rope({.qkv = dense_rows(qkv.data(), call.rows, heads.qkv_width()),
             .heads = heads.heads,
             .kv_heads = heads.kv_heads,
             .dim = heads.key_dim,
             .half = rope.rotary / 2,
             .adjacent_pairs = rope.adjacent_pairs,
             .cos = angles(cos, std::max(table, 0)),
             .sin = angles(sin, std::max(table, 0)),
             .q_norm = weights.q_norm.empty() ? nullptr : weights.q_norm.data(),
             .k_norm = weights.k_norm.empty() ? nullptr : weights.k_norm.data(),
             .norm_eps = config.norm_eps,
             .q = query_rows(call),
             .live_rows = rows.count},
            call.exec);
  kv::store_rows({.layer = call.store.layer(layer),
                  .keys = kv_part(heads.heads, call),
                  .values = kv_part(heads.heads + heads.kv_heads, call),
                  .slots = rows.slots,
                  .live_rows = rows.count},
                 call.exec);
}

HeadRows Forward::Impl::query_rows(const Call& call) const {
  return {.data = q.data(),
          .type = query_type_for(kv_type),
          .rows = call.rows,
          .heads = heads.heads,
          .dim = heads.key_dim,
          .row_stride = heads.q_width()};
}

ConstHeadRows Forward::Impl::kv_part(int32_t first_head, const Call& call) const {
  return {.data = reinterpret_cast<const std::byte*>(qkv.data() + int64_t{first_head} * heads.key_dim),
          .type = Dtype::f32,
          .rows = call.rows,
          .heads = heads.kv_heads,
          .dim = heads.key_dim,
          .row_stride = heads.qkv_width()};
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
                .scale = config.layers[layer].attention.scale,
                .window = config.layers[layer].attention.window},
               call.exec);
}

void Forward::Impl::feed_forward(int32_t layer, const Call& call) const {
  const LayerWeights& weights = model.layers()[layer];
  const int32_t width = config.layers[layer].feed_forward.width;
  ops::matmul({.weights = &weights.gate_and_up,
               .in = normed(x.data(), call.rows, weights.ffn_norm, weights.gate_and_up.forms(), rows.count, call.exec),
               .out = dense_rows(hidden.data(), call.rows, width),
               .store = ops::Store::silu_mul,
               .live_rows = rows.count},
              call.exec);
  ops::matmul({.weights = &weights.down,
               .in = as_input(hidden, width, weights.down.forms(), call),
               .out = dense_rows(x.data(), call.rows, config.width),
               .store = ops::Store::add,
               .live_rows = rows.count},
              call.exec);
}

Rows<float> Forward::Impl::wanted_rows(const Array<float>& memory, int64_t dim) const {
  return dense_rows(memory.data(), limits.wanted_rows, dim);
}

void Forward::Impl::gather_wanted(const Call& call) const {
  const auto gather = [&](const Array<float>& from, const Array<float>& to, int64_t dim) {
    ops::gather_rows({.in = dense_rows(from.data(), call.rows, dim),
                      .index = rows.wanted_index,
                      .out = wanted_rows(to, dim),
                      .live_rows = rows.wanted_count},
                     call.exec);
  };
  gather(x, wanted_x, config.width);
  gather(attended, wanted_attended, heads.out_width());
}

void Forward::Impl::norm_wanted(const Array<float>& in, const std::vector<float>& weight, Exec& exec) const {
  ops::ActivationRows out{};
  out.forms = {.f32 = true};
  out.rows = limits.wanted_rows;
  out.dim = config.width;
  out.f32 = wanted_normed.data();
  ops::rms_norm({.in = wanted_rows(in, config.width),
                 .weight = weight.data(),
                 .eps = config.norm_eps,
                 .out = out,
                 .live_rows = rows.wanted_count},
                exec);
}

// Dense weights read the rows as they are, which is fine already; where both kinds are joined, 8 bits must do.
void Forward::Impl::fine_product(const FineProduct& product, Exec& exec) const {
  const ops::Forms forms = product.weights.forms();
  if (!forms.f32) {
    return ops::fine_matmul({.weights = &product.weights,
                             .in = product.in,
                             .out = product.out,
                             .store = product.store,
                             .live_rows = product.live_rows,
                             .scratch = &fine},
                            exec);
  }
  const ops::ActivationRows in = activations.view(product.in.dim, forms);
  ops::quantise({.in = product.in, .out = in, .live_rows = product.live_rows}, exec);
  ops::matmul({.weights = &product.weights,
               .in = in,
               .out = product.out,
               .store = product.store,
               .live_rows = product.live_rows},
              exec);
}

void Forward::Impl::finish_layer(const LayerWeights& weights, Exec& exec) const {
  const Rows<float> residual = wanted_rows(wanted_x, config.width);
  const Rows<float> hidden_rows = wanted_rows(wanted_hidden, config.layers.back().feed_forward.width);
  fine_product({.weights = weights.attention_out,
                .in = wanted_rows(wanted_attended, heads.out_width()),
                .out = residual,
                .store = ops::Store::add,
                .live_rows = rows.wanted_count},
               exec);
  norm_wanted(wanted_x, weights.ffn_norm, exec);
  fine_product({.weights = weights.gate_and_up,
                .in = wanted_rows(wanted_normed, config.width),
                .out = hidden_rows,
                .store = ops::Store::silu_mul,
                .live_rows = rows.wanted_count},
               exec);
  fine_product({.weights = weights.down,
                .in = hidden_rows,
                .out = residual,
                .store = ops::Store::add,
                .live_rows = rows.wanted_count},
               exec);
}

void Forward::Impl::finish(Exec& exec) const {
  norm_wanted(wanted_x, model.output_norm(), exec);
  fine_product({.weights = model.output(),
                .in = wanted_rows(wanted_normed, config.width),
                .out = wanted_rows(logits, config.vocabulary),
                .live_rows = rows.logits_count},
               exec);
}

Forward::Forward(const Model& model, const ForwardLimits& limits, Dtype kv_type)
    : impl_(std::make_unique<Impl>(model, limits, kv_type)) {}
Forward::~Forward() = default;

const StepRows& Forward::rows() const { return impl_->rows; }
Rows<const float> Forward::hidden() const { return impl_->wanted_rows(impl_->wanted_normed, impl_->config.width); }
Rows<const float> Forward::logits() const { return impl_->wanted_rows(impl_->logits, impl_->config.vocabulary); }

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
