#include "model/blocks_cuda.h"

#include "model/blocks_composed.h"
#include "model/rope_store.h"
#include "ops/matmul.h"

namespace quire::model::cuda {
namespace {

constexpr ops::Forms kBf16{.bf16 = true};
constexpr int64_t kHalves = sizeof(float) / sizeof(uint16_t);

// bf16 where f32 rows would lie.
ops::ActivationRows rows_in_place(const Rows<float>& rows) {
  return {.forms = kBf16,
          .rows = rows.rows,
          .dim = rows.dim,
          .f32 = nullptr,
          .bf16 = reinterpret_cast<uint16_t*>(rows.data),
          .bf16_stride = rows.stride * kHalves};
}

// A product of the residual stream, normed where the layer has a norm there: the norm's factor comes after the product
// where the block before left the stream, else the norm is an operation of its own.
void multiply_normed(ops::MatmulArgs args, const Vector& norm, const BlockRows& rows, Exec& exec) {
  if (rows.streamed) {
    args.in = {.forms = kBf16, .rows = rows.x.rows, .dim = rows.x.dim, .f32 = nullptr, .bf16 = rows.stream};
    args.fusions.squares = rows.stream_squares;
    args.fusions.norm_eps = rows.norm_eps;
  } else {
    args.in = composed::normed_input(*args.weights, norm, rows, exec);
  }
  args.deterministic = rows.deterministic;
  ops::matmul(args, exec);
}

void rotate_and_store(const QkvBlock& block, Exec& exec) {
  if (block.spec->attention.qk_norm == QkNorm::none && !block.kv.latent())
    rope_store(block, exec);
  else
    composed::rotate_and_store(block, exec);
}

ops::HeadTargets head_targets(const QkvBlock& block) {
  const AttentionSpec& spec = block.spec->attention;
  return {.heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .key_dim = spec.key_dim,
          .value_dim = spec.value_dim,
          .half = block.rope.rotary / 2,
          .adjacent_pairs = block.rope.adjacent_pairs,
          .cos = block.cos,
          .sin = block.sin,
          .q = block.q,
          .keys = block.kv.keys,
          .values = block.kv.values,
          .key_stride = block.kv.key_stride,
          .value_stride = block.kv.value_stride,
          .kv_type = block.kv.type,
          .slots = block.slots};
}

}  // namespace

void qkv(const QkvBlock& block, Exec& exec) {
  ops::MatmulArgs args{.weights = &block.weights->qkv,
                       .in = {},
                       .out = block.qkv,
                       .bias = block.weights->qkv_bias.data(),
                       .live_rows = block.rows.live_rows};
  const bool plain_heads = block.spec->attention.qk_norm == QkNorm::none && !block.kv.latent();
  const ops::HeadTargets heads = head_targets(block);
  const bool stores = plain_heads && !block.rows.deterministic &&
                      ops::cuda::stores_heads(block.weights->qkv, heads, block.rows.x.rows);
  if (stores) args.fusions.heads = &heads;
  multiply_normed(args, block.weights->attention_norm, block.rows, exec);
  if (!stores) rotate_and_store(block, exec);
}

void attention(const attn::AttendArgs& args, Exec& exec) {
  attn::AttendArgs narrow = args;
  narrow.out.type = Dtype::bf16;
  narrow.out.row_stride = args.out.row_stride * kHalves;
  attn::attend(narrow, exec);
}

void residual(const ResidualBlock& block, Exec& exec) { composed::add_product(block, rows_in_place(block.in), exec); }

void streamed_residual(const ResidualBlock& block, Exec& exec) {
  const BlockRows& rows = block.rows;
  ops::MatmulArgs args{.weights = block.weights,
                       .in = rows_in_place(block.in),
                       .out = rows.x,
                       .store = ops::Store::add,
                       .scale = block.spec->residual_scale,
                       .live_rows = rows.live_rows};
  if (block.next_norm)
    args.fusions.next = {.weight = block.next_norm->data(), .rows = rows.stream, .squares = rows.stream_squares};
  ops::matmul(args, exec);
}

void gate_up(const GateUpBlock& block, Exec& exec) {
  multiply_normed({.weights = &block.weights->gate_and_up,
                   .in = {},
                   .out = block.out,
                   .store = ops::Store::silu_mul,
                   .fusions = {.bf16_out = true},
                   .live_rows = block.rows.live_rows},
                  block.weights->ffn_norm, block.rows, exec);
}

void quantised_qkv(const QkvBlock& block, Exec& exec) {
  composed::multiply({.weights = &block.weights->qkv,
                      .in = {},
                      .out = block.qkv,
                      .bias = block.weights->qkv_bias.data(),
                      .live_rows = block.rows.live_rows},
                     block.rows.x, block.weights->attention_norm, block.rows, exec);
  rotate_and_store(block, exec);
}

void quantised_residual(const ResidualBlock& block, Exec& exec) {
  if (!block.norm_after->empty())
    return composed::add_product(block, composed::input_of(*block.weights, block.in, block.rows, exec), exec);
  composed::multiply({.weights = block.weights,
                      .in = {},
                      .out = block.rows.x,
                      .store = ops::Store::add,
                      .scale = block.spec->residual_scale,
                      .live_rows = block.rows.live_rows},
                     block.in, Vector{}, block.rows, exec);
}

void quantised_gate_up(const GateUpBlock& block, Exec& exec) {
  composed::multiply({.weights = &block.weights->gate_and_up,
                      .in = {},
                      .out = block.out,
                      .store = ops::Store::silu_mul,
                      .live_rows = block.rows.live_rows},
                     block.rows.x, block.weights->ffn_norm, block.rows, exec);
}

}  // namespace quire::model::cuda
