// What the blocks mean: their compositions of plain operations.
#include "model/blocks.h"

#include <algorithm>

#include "base/check.h"
#include "model/blocks_composed.h"
#include "model/blocks_cuda.h"
#include "ops/logits.h"
#include "ops/matmul.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quire::model {
namespace {

ops::Forms forms_for(const ops::PackedMatrix& weights, const BlockRows& rows) {
  return rows.precise ? weights.precise_forms() : weights.forms();
}

ConstHeadRows heads_of(const Rows<float>& qkv, int64_t first, int32_t heads, int32_t dim) {
  return {.data = reinterpret_cast<const std::byte*>(qkv.data + first),
          .type = Dtype::f32,
          .rows = qkv.rows,
          .heads = heads,
          .dim = dim,
          .row_stride = qkv.stride};
}

}  // namespace

ops::ActivationRows composed::input_of(const ops::PackedMatrix& weights, const Rows<float>& in, const BlockRows& rows,
                                       Exec& exec) {
  const ops::Forms forms = forms_for(weights, rows);
  ops::ActivationRows out = rows.activations->view(in.dim, forms);
  if (forms.quantised() || forms.bf16)
    ops::quantise({.in = in, .out = out, .live_rows = rows.live_rows}, exec);
  else
    out.f32 = in.data;
  return out;
}

ops::ActivationRows composed::normed_input(const ops::PackedMatrix& weights, const Vector& norm, const BlockRows& rows,
                                           Exec& exec) {
  if (norm.empty()) return input_of(weights, rows.x, rows, exec);
  const ops::ActivationRows out = rows.activations->view(rows.x.dim, forms_for(weights, rows));
  ops::rms_norm({.in = rows.x, .weight = norm.data(), .eps = rows.norm_eps, .out = out, .live_rows = rows.live_rows},
                exec);
  return out;
}

void composed::multiply(ops::MatmulArgs args, const Rows<float>& in, const Vector& norm, const BlockRows& rows,
                        Exec& exec) {
  const bool on_gpu = args.weights->device() == Device::cuda;
  args.deterministic = rows.deterministic;
  if (on_gpu && !rows.precise && ops::cuda::quantises_rows(*args.weights, in.rows)) {
    args.in = {.forms = {.f32 = true}, .rows = in.rows, .dim = in.dim, .f32 = in.data};
    args.fusions.quantise = true;
    args.fusions.quantise_norm = norm.empty() ? nullptr : norm.data();
    args.fusions.norm_eps = rows.norm_eps;
  } else if (norm.empty()) {
    args.in = input_of(*args.weights, in, rows, exec);
  } else {
    args.in = normed_input(*args.weights, norm, rows, exec);
  }
  ops::matmul(args, exec);
}

void composed::rotate_and_store(const QkvBlock& block, Exec& exec) {
  const AttentionSpec& spec = block.spec->attention;
  const LayerWeights& weights = *block.weights;
  const int32_t* live_rows = block.rows.live_rows;
  ops::rope({.qkv = block.qkv,
             .heads = spec.heads,
             .kv_heads = spec.kv_heads,
             .dim = spec.key_dim,
             .half = block.rope.rotary / 2,
             .adjacent_pairs = block.rope.adjacent_pairs,
             .cos = block.cos,
             .sin = block.sin,
             .q_norm = weights.q_norm.data(),
             .k_norm = weights.k_norm.data(),
             .norm_whole_row = spec.qk_norm == QkNorm::whole_row,
             .norm_eps = block.rows.norm_eps,
             .q = block.q,
             .live_rows = live_rows},
            exec);
  kv::store_rows({.layer = block.kv,
                  .keys = heads_of(block.qkv, spec.q_width(), spec.kv_heads, spec.key_dim),
                  .values = heads_of(block.qkv, spec.q_width() + spec.k_width(), spec.kv_heads, spec.value_dim),
                  .slots = block.slots,
                  .live_rows = live_rows},
                 exec);
}

void composed::add_product(const ResidualBlock& block, const ops::ActivationRows& in, Exec& exec) {
  const BlockRows& rows = block.rows;
  const float scale = block.spec->residual_scale;
  if (block.norm_after->empty())
    return ops::matmul({.weights = block.weights,
                        .in = in,
                        .out = rows.x,
                        .store = ops::Store::add,
                        .scale = scale,
                        .deterministic = rows.deterministic,
                        .live_rows = rows.live_rows},
                       exec);
  const Rows<float> result{rows.result, rows.x.rows, rows.x.dim, rows.x.dim};
  ops::matmul({.weights = block.weights,
               .in = in,
               .out = result,
               .deterministic = rows.deterministic,
               .live_rows = rows.live_rows},
              exec);
  ops::rms_norm({.in = result,
                 .weight = block.norm_after->data(),
                 .eps = rows.norm_eps,
                 .out = {.forms = {.f32 = true}, .rows = result.rows, .dim = result.dim, .f32 = result.data},
                 .live_rows = rows.live_rows},
                exec);
  ops::add_rows({.in = result, .scale = scale, .out = rows.x, .live_rows = rows.live_rows}, exec);
}

namespace {

void qkv(const QkvBlock& block, Exec& exec) {
  const LayerWeights& weights = *block.weights;
  ops::matmul({.weights = &weights.qkv,
               .in = composed::normed_input(weights.qkv, weights.attention_norm, block.rows, exec),
               .out = block.qkv,
               .bias = weights.qkv_bias.data(),
               .deterministic = block.rows.deterministic,
               .live_rows = block.rows.live_rows},
              exec);
  composed::rotate_and_store(block, exec);
}

void residual(const ResidualBlock& block, Exec& exec) {
  composed::add_product(block, composed::input_of(*block.weights, block.in, block.rows, exec), exec);
}

void gate_up(const GateUpBlock& block, Exec& exec) {
  const LayerWeights& weights = *block.weights;
  ops::matmul({.weights = &weights.gate_and_up,
               .in = composed::normed_input(weights.gate_and_up, weights.ffn_norm, block.rows, exec),
               .out = block.out,
               .store = ops::Store::silu_mul,
               .deterministic = block.rows.deterministic,
               .live_rows = block.rows.live_rows},
              exec);
}

void head(const HeadBlock& block, Exec& exec) {
  ops::ActivationRows in =
      block.rows.activations->view(block.rows.x.dim, forms_for(*block.weights, block.rows) | ops::Forms{.f32 = true});
  in.f32 = block.normed.data;
  ops::rms_norm({.in = block.rows.x,
                 .weight = block.norm->data(),
                 .eps = block.rows.norm_eps,
                 .out = in,
                 .live_rows = block.rows.live_rows},
                exec);
  ops::logits({.weights = block.weights,
               .in = in,
               .out = block.logits,
               .scale = block.logits_scale,
               .reach = block.logit_reach,
               .scratch = block.scratch,
               .deterministic = block.rows.deterministic,
               .live_rows = block.logits_rows},
              exec);
}

}  // namespace

ops::Forms forms_of(const LayerWeights& weights) {
  return weights.qkv.forms() | weights.attention_out.forms() | weights.gate_and_up.forms() | weights.down.forms();
}

int64_t most_fused_rows(const LayerWeights& weights) {
  if (weights.qkv.device() != Device::cuda || weights.down.outputs() % ops::kStreamGroup != 0) return 0;
  return std::min({ops::cuda::most_fused_rows(weights.qkv), ops::cuda::most_fused_rows(weights.attention_out),
                   ops::cuda::most_fused_rows(weights.gate_and_up), ops::cuda::most_fused_rows(weights.down)});
}

BlockChoice choose_blocks(const LayerSpec& spec, Device device, int64_t rows, ops::Forms forms, int64_t fused_rows) {
  const bool reads_bf16 = device == Device::cuda && forms == ops::Forms{.bf16 = true};
  if (reads_bf16 && rows <= fused_rows && spec.norm_before && !spec.norm_after)
    return {.qkv = {"streamed", cuda::qkv},
            .attention = {"attend", cuda::attention},
            .attention_out = {"streamed", cuda::streamed_residual},
            .gate_up = {"streamed", cuda::gate_up},
            .down = {"streamed", cuda::streamed_residual},
            .head = {"composed", head},
            .streams = true};
  if (reads_bf16)
    return {.qkv = {"fused", cuda::qkv},
            .attention = {"attend", cuda::attention},
            .attention_out = {"fused", cuda::residual},
            .gate_up = {"fused", cuda::gate_up},
            .down = {"fused", cuda::residual},
            .head = {"composed", head}};
  if (device == Device::cuda && forms == ops::Forms{.q8 = true})
    return {.qkv = {"quantised", cuda::quantised_qkv},
            .attention = {"attend", attn::attend},
            .attention_out = {"quantised", cuda::quantised_residual},
            .gate_up = {"quantised", cuda::quantised_gate_up},
            .down = {"quantised", cuda::quantised_residual},
            .head = {"composed", head}};
  return {.qkv = {"composed", qkv},
          .attention = {"attend", attn::attend},
          .attention_out = {"composed", residual},
          .gate_up = {"composed", gate_up},
          .down = {"composed", residual},
          .head = {"composed", head}};
}

std::string to_string(const BlockChoice& choice) {
  return cat("qkv ", choice.qkv.name, " | attention ", choice.attention.name, " | attention_out ",
             choice.attention_out.name, " | gate_up ", choice.gate_up.name, " | down ", choice.down.name, " | head ",
             choice.head.name);
}

}  // namespace quire::model
