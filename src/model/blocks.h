// The blocks that a model is walked in, and who computes them.
//
//   qkv             norm of x, product, bias, norms of queries and keys, rope; keys and values into the store
//   attention       queries and the store to attended rows
//   attention_out   x += scale * norm(product of attended rows)
//   gate_up         norm of x, silu(gate) * up
//   down            x += scale * norm(product of gate_up's rows)
//   head            norm of x, product: logits
//
// (Norms, bias and rope where the spec has them.) A block's meaning is its composition of plain operations, blocks.cc.
// A device may compute a block in a way of its own, for the specs, weights and rows that it knows; everything else
// takes the composition, so a spec that nobody knows is slower and never an error. choose_blocks() decides.
//
// All blocks read their live rows when they run, and record while exec captures.
#pragma once
#include <cstdint>
#include <string>

#include "attn/attention.h"
#include "base/exec.h"
#include "base/tensor.h"
#include "kv/store.h"
#include "model/config.h"
#include "model/model.h"
#include "ops/activations.h"
#include "ops/logits.h"

namespace quire::model {

// Rows that pass a block.
struct BlockRows {
  Rows<float> x;             // [rows, width] the residual stream
  const int32_t* live_rows;  // [1]
  bool precise;              // products at twice the precision (q8x2 of ops/activations.h)
  float norm_eps;
  // Scratch of the composition: what the next product reads, and a product's result before its norm [rows, width].
  const ops::ActivationBuffer* activations;
  float* result;
  // x times the weight of the norm that reads it next, for that norm's factor (ops::NormedStream). Streamed blocks that
  // add to x fill it, and those that read x find it where `streamed` says so.
  uint16_t* stream = nullptr;       // [rows, width]
  float* stream_squares = nullptr;  // [rows, width / 16]
  bool streamed = false;
  bool deterministic = false;  // products as MatmulArgs::deterministic has them
};

struct QkvBlock {
  const LayerSpec* spec;
  const LayerWeights* weights;
  BlockRows rows;    // x is read
  RopeSpec rope;     // rotary 0: none
  const float* cos;  // [rows, rotary / 2] of this step's positions
  const float* sin;
  Rows<float> qkv;         // [rows, q, k and v heads] scratch
  HeadRows q;              // what attention reads
  kv::LayerKv kv;          // where keys and values go,
  const TokenSlot* slots;  // [rows] each to its slot
};

// attention_out and down: a half of a layer comes back to the residual stream.
struct ResidualBlock {
  const LayerSpec* spec;
  const ops::PackedMatrix* weights;
  const Vector* norm_after;           // of the result; empty: none
  BlockRows rows;                     // x is added to
  Rows<float> in;                     // attended rows, or gate_up's
  const Vector* next_norm = nullptr;  // that reads x next; null: nobody's
};

struct GateUpBlock {
  const LayerWeights* weights;
  BlockRows rows;   // x is read
  Rows<float> out;  // [rows, feed-forward width]
};

struct HeadBlock {
  const ops::PackedMatrix* weights;
  const Vector* norm;
  BlockRows rows;              // x is read
  Rows<float> normed;          // [rows, width]
  Rows<float> logits;          // [rows, vocabulary]
  const int32_t* logits_rows;  // [1] the first of the live rows, whose logits are wanted
  float logits_scale;
  const float* logit_reach = nullptr;  // [rows] on a CPU: of ops::LogitsArgs, as is
  ops::LogitsScratch scratch = {};
};

template <class Block>
struct Implementation {
  const char* name;  // "composed", or the kernel's
  void (*run)(const Block& block, Exec& exec);
};

struct BlockChoice {
  Implementation<QkvBlock> qkv;
  Implementation<attn::AttendArgs> attention;
  Implementation<ResidualBlock> attention_out;
  Implementation<GateUpBlock> gate_up;
  Implementation<ResidualBlock> down;
  Implementation<HeadBlock> head;
  bool streams = false;  // what adds to x leaves the stream of the next norm
};
std::string to_string(const BlockChoice& choice);  // "qkv composed | attention attend | ..."

// What all products of a layer read together.
ops::Forms forms_of(const LayerWeights& weights);

// Up to how many rows all products of a layer on a GPU fuse what lies between them (ops::MatmulFusions).
int64_t most_fused_rows(const LayerWeights& weights);

// Who computes the blocks of such a layer, whose weights read such forms and fuse so many rows, for up to so many rows.
// A pure function of these. The blocks of one choice go together: what one leaves for the next (attended rows,
// gate_up's) may have a form of its own.
BlockChoice choose_blocks(const LayerSpec& spec, Device device, int64_t rows, ops::Forms forms = {},
                          int64_t fused_rows = 0);

}  // namespace quire::model
