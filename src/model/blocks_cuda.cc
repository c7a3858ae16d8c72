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

// A product of the residual stream, normed where the layer has a norm there.
void multiply_normed(ops::MatmulArgs args, const Vector& norm, const BlockRows& rows, Exec& exec) {
  // How many rows there are decides whether it can, and a norm apart rounds otherwise.
  const bool fuses = !rows.deterministic && !norm.empty() && rows.x.stride == rows.x.dim &&
                     ops::cuda::fuses_norm(*args.weights, rows.x.rows);
  if (fuses) {
    args.in = {.forms = {.f32 = true}, .rows = rows.x.rows, .dim = rows.x.dim, .f32 = rows.x.data};
    args.fusions.norm = norm.data();
    args.fusions.norm_eps = rows.norm_eps;
  } else {
    args.in = composed::normed_input(*args.weights, norm, rows, exec);
  }
  args.deterministic = rows.deterministic;
  ops::matmul(args, exec);
}

}  // namespace

void qkv(const QkvBlock& block, Exec& exec) {
  multiply_normed({.weights = &block.weights->qkv,
                   .in = {},
                   .out = block.qkv,
                   .bias = block.weights->qkv_bias.data(),
                   .live_rows = block.rows.live_rows},
                  block.weights->attention_norm, block.rows, exec);
  if (block.spec->attention.qk_norm == QkNorm::none && !block.kv.latent())
    rope_store(block, exec);
  else
    composed::rotate_and_store(block, exec);
}

void attention(const attn::AttendArgs& args, Exec& exec) {
  attn::AttendArgs narrow = args;
  narrow.out.type = Dtype::bf16;
  narrow.out.row_stride = args.out.row_stride * kHalves;
  attn::attend(narrow, exec);
}

void residual(const ResidualBlock& block, Exec& exec) { composed::add_product(block, rows_in_place(block.in), exec); }

void gate_up(const GateUpBlock& block, Exec& exec) {
  multiply_normed({.weights = &block.weights->gate_and_up,
                   .in = {},
                   .out = block.out,
                   .store = ops::Store::silu_mul,
                   .fusions = {.bf16_out = true},
                   .live_rows = block.rows.live_rows},
                  block.weights->ffn_norm, block.rows, exec);
}

}  // namespace quire::model::cuda
