// Products of activation rows with a weight matrix:  out[r][c] = (sum_k in[r][k] * w[c][k] + bias[c]) * scale.
//
// One arithmetic for every row: a row's bits do not depend on how many rows there are, on the other rows, on the
// number of threads or on which columns a thread takes. They are, exactly, what ref::matmul computes in this order:
//
//   quantised   k in blocks of 32 ascending (two half blocks of 16 where the type has scales for 16). For each:
//               isum = sum of integer products, exact in int32, offsets of signed types taken off in integers;
//               acc = fma(float(isum), w_scale * in_scale, acc); types with a minimum then
//               acc = fma(w_min, in_scale * float(sum of q), acc).          One accumulator an output.
//   dense       acc = fma(in[k], float(w[k]), acc), k ascending.            One accumulator an output.
//   q8x2        the sums of a row's two quantised rows, each as above, are added: acc = first + second.
//   scale       result = (acc + bias) * scale, each rounded.
//   silu        fma(min(0, x), e, max(0, x)) / (1 + e), e = exp2(-|x * log2(e)|) with the exp2 of base/simd.
//
// All fast kernels of the CPU (AVX2, AVX-VNNI, AVX-512 VNNI, AMX int8; dense AVX2 and AVX-512) give these bits;
// Isa::plain runs ref. This is for finite numbers: where a NaN comes out, its bits are not fixed.
//
// Weights of F8_E4M3 become bf16, times their scales, on a CPU; on a GPU they stay as they are (packed_fp8.h), and a
// sum is scaled: block by block of 128 inputs, or at its end.
//
// On a GPU products of quantised weights have these bits too, with room for up to kMostExactRows rows, and q8x2 rows
// always; for more rows the numbers that weights and rows stand for are rounded to bf16 and multiplied by cuBLASLt
// where its library is found. Where a part is dense, or gate and up are of different types, weights and rows of all
// parts are bf16, whatever the file has, and sums are f32; bias, scale and store are as above. The order of a sum is
// the kernel's, which is chosen by the weights' shape and the room: with room for up to 8 rows, and 16 with small
// matrices, a row's bits depend on neither the number of rows nor the other rows; with more on how many rows there is
// room for. Rooms of more than most_own_rows() are served by cuBLASLt where its library is found, but those of large
// matrices that quire's kernels serve sooner: up to 128 rows, gates and ups up to 256. Gates and ups that cuBLASLt
// makes are rounded to bf16 before silu if the results are bf16 too.
// With `deterministic` the weights' shape alone says which kernel serves a room, and a row's bits depend on the row
// alone. The live rows are counted where the kernel runs, except by cuBLASLt, which computes the whole room: there rows
// of out past the live ones are overwritten with what has no meaning. So give views of as many rows as the step has
// room for, not of all memory.
//
// Memory   a product keeps nothing that it allocates; on a CPU it uses the threads' scratch, on a GPU what was set
//          apart for exec's stream when the weights were laid out, so it may be captured.
// Errors   arguments that do not fit the weights, and weights of another device, throw CheckError that shows both,
//          before any work; on a CPU a live count beyond the room when the operation runs (a GPU takes the room for
//          it).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/blocks.h"
#include "base/buffer.h"
#include "base/exec.h"
#include "base/tensor.h"
#include "ops/activations.h"
#include "ops/packed_memory.h"

namespace quire::ops {

// What numbers of F8_E4M3 are multiplied by: one for each block of so many outputs and inputs, those of the last ones
// cut off; [blocks of outputs, blocks of inputs].
struct WeightScales {
  const float* data = nullptr;
  int64_t block_outputs = 0, block_inputs = 0;
  int64_t stride = 0;  // numbers from a row of blocks to the next; 0: rows lie dense
};

// A matrix as its file holds it, [outputs, inputs], or a part of one.
struct WeightView {
  BlockType type;
  const std::byte* data;
  int64_t outputs;
  int64_t inputs;
  WeightScales scales = {};  // of F8_E4M3 alone; without data: 1
  int64_t stride = 0;        // bytes from a row to the next; 0: rows lie dense

  int64_t row_stride() const { return stride ? stride : bytes_of(type, inputs); }
  int64_t scales_stride() const {
    return scales.stride ? scales.stride : (inputs + scales.block_inputs - 1) / scales.block_inputs;
  }
  float scale(int64_t output, int64_t input) const {
    if (!scales.data) return 1;
    return scales.data[output / scales.block_outputs * scales_stride() + input / scales.block_inputs];
  }
};
std::string to_string(const WeightView& weights);
// The part of a matrix that one of several GPUs has, or one of several products: `count` outputs, or inputs, from
// `first` on, where they lie. Throws CheckError printing the matrix when there are none such, or they begin or end
// within a block of numbers, or begin within a block of scales and end in another.
WeightView some_outputs(const WeightView& weights, int64_t first, int64_t count);
WeightView some_inputs(const WeightView& weights, int64_t first, int64_t count);
// The row's inputs from `first` on as the numbers that they stand for, scales included; whole blocks of its type.
void read_weights(const WeightView& weights, int64_t output, int64_t first, std::span<float> out);

// Room in rows up to which products of quantised weights on a GPU have the CPU's bits. Beyond, widening the weights to
// bf16 for cuBLASLt takes less time.
inline constexpr int64_t kMostExactRows = 32;

// One or several matrices over the same inputs, laid out at load for the device that multiplies them. For a CPU: 16
// output columns side by side, in the order in which a product streams through them (packed_layout.h). For a GPU:
// in its own memory, quantised matrices as blocks (packed_blocks.h), F8_E4M3 as strips (packed_fp8.h), others as rows
// of bf16 (packed_rows.h). Owns its memory; addresses are fixed for life.
class PackedMatrix {
 public:
  enum class Join {
    stack,       // outputs one matrix after the other (q, k, v); types may differ
    gate_and_up  // two equal shapes: gate and up tiles side by side (on a GPU 8 rows of each), for Store::silu_mul
  };
  PackedMatrix() = default;
  // For exec's device. Reads the views once, on all threads of exec; the file is not needed afterwards. Throws
  // CheckError printing the matrix when inputs are no whole blocks (for a GPU: no multiple of 8), shapes do not fit the
  // join, or a number of F8_E4M3 is NaN.
  PackedMatrix(std::span<const WeightView> parts, Join join, Exec& exec);

  int64_t outputs() const;  // of all parts together
  int64_t inputs() const;
  Device device() const { return device_; }  // who can multiply it
  Forms forms() const;                       // what the activations must come in
  // The same at twice the precision. Dense weights read rows as they are; where both kinds are joined, 8 bits must do.
  Forms precise_forms() const;
  size_t bytes() const;  // of packed weights: what a product of one row reads
  Join join() const { return join_; }

  // One matrix in packed form, for the kernels; packed_layout.h says what lies in a tile.
  struct Part {
    BlockType type;
    int64_t first_output;  // its first column in the product
    int64_t outputs;       // the last tile is filled up to 16 columns with zeros
    int64_t inputs;
    const std::byte* tiles;  // 64-byte aligned, as is every tile; on a GPU the part's first tile or row
    int64_t tile_stride;     // bytes from one tile to the next: gate and up tiles alternate; of blocks on a GPU from
                             // one panel to the next

    int64_t tile_count() const;
  };
  std::span<const Part> parts() const { return parts_; }
  // Of dense weights on a GPU: all parts as rows [outputs, inputs], padded (packed_rows.h).
  const uint16_t* rows() const { return reinterpret_cast<const uint16_t*>(device_memory_[0].data()); }
  // Of F8_E4M3 on a GPU: all parts as strips, and what the sums of their rows are multiplied by (packed_fp8.h).
  bool is_fp8() const { return device_ == Device::cuda && parts_[0].type == BlockType::f8_e4m3; }
  const std::byte* strips() const { return device_memory_[0].data(); }
  const float* row_scales() const { return reinterpret_cast<const float*>(device_memory_[1].data()); }

 private:
  void place_on_host(std::span<const WeightView> views, Exec& exec);
  void place_on_device(std::span<const WeightView> views, Exec& exec);
  void place_blocks_on_device(std::span<const WeightView> views, Exec& exec);
  void place_fp8_on_device(std::span<const WeightView> views, Exec& exec);

  Join join_ = Join::stack;
  Device device_ = Device::cpu;
  std::vector<Part> parts_;
  PackedMemory memory_;                // on a CPU
  std::vector<Buffer> device_memory_;  // on a GPU: all rows, the blocks of each part, or strips and scales of rows
};

enum class Store : uint8_t {
  set,      // out = result
  add,      // out += result: the residual
  silu_mul  // gate_and_up only: out[c] = silu(gate[c]) * up[c]; out has outputs() / 2 columns
};

// Rows of the residual stream on their way from the product that made them to the ones that read them normed: x *
// weight in bf16, and what the norm's factor follows from. A factor of the whole row may come after the product, so
// nobody has to wait for the row.
inline constexpr int64_t kStreamGroup = 16;
struct NormedStream {
  const float* weight = nullptr;  // [dim] of the norm; null: nobody reads it
  uint16_t* rows = nullptr;       // [rows, dim]
  float* squares = nullptr;       // [rows, dim / kStreamGroup] of x, added up by groups
};

// Where a product of queries, keys and values leaves its heads: rope (rope.h) and the store of keys and values in one.
struct HeadTargets {
  int32_t heads, kv_heads, key_dim, value_dim;
  int32_t half;  // pairs of a query or key that are rotated; the others stay as they are
  bool adjacent_pairs;
  const float* cos;  // [rows, half]
  const float* sin;
  HeadRows q;
  std::byte* keys;  // [slots, key_stride]
  std::byte* values;
  int64_t key_stride, value_stride;  // elements
  Dtype kv_type;                     // not fp8
  const TokenSlot* slots;            // [rows]
};

// What a product on a GPU does besides, in place of an operation before or after it. A CPU refuses it. Only
// with room for up to most_fused_rows() rows, bf16_out excepted.
struct MatmulFusions {
  bool bf16_out = false;  // rows of out are bf16, each from where its f32 row would begin; not with Store::add
  // in.bf16 are rows of a NormedStream whose squares these are: sums come times 1 / sqrt(mean(x^2) + norm_eps).
  const float* squares = nullptr;
  float norm_eps = 0;
  NormedStream next = {};              // with Store::add: to be filled from what out holds then
  const HeadTargets* heads = nullptr;  // in place of out, where stores_heads() says so
  // Of quantised weights: the row is in.f32, and is quantised (activations.h) on the way, normed before that
  // (rms_norm.h) with this weight [inputs] and norm_eps; null: it is not normed. Only where quantises_rows() says so.
  bool quantise = false;
  const float* quantise_norm = nullptr;

  explicit operator bool() const { return bf16_out || squares || next.weight || heads || quantise; }
};

struct MatmulArgs {
  const PackedMatrix* weights;  // outlives recorded calls
  ActivationRows in;
  Rows<float> out;
  const float* bias = nullptr;  // [outputs]; null: none. Added once, after the sum: result = acc + bias
  Store store = Store::set;
  float scale = 1;  // of the result, after the bias, before it is set or added; silu_mul has none
  MatmulFusions fusions = {};
  // On a GPU, where it costs time: a row's bits depend on no other row and not on the room. A CPU has no others.
  bool deterministic = false;
  // Rows computed; the others of out are not touched (on a GPU up to most_own_rows). Read when the operation runs.
  const int32_t* live_rows;
};
using MatmulFn = void(const MatmulArgs&, Exec&);
namespace ref {
MatmulFn matmul;
}
namespace cpu {
MatmulFn matmul;  // by exec's instruction set
}
namespace cuda {
MatmulFn matmul;
int64_t most_own_rows(const PackedMatrix& weights);    // room up to which quire's own kernels multiply them
// Room up to which they fuse more than bf16_out. For more than 8 rows of a large matrix out, bias and the next stream
// must lie in whole fours of numbers, and gates and ups leave bf16.
int64_t most_fused_rows(const PackedMatrix& weights);
// Whether the kernel for a room of so many rows puts such heads in their places.
bool stores_heads(const PackedMatrix& weights, const HeadTargets& heads, int64_t rows);
bool quantises_rows(const PackedMatrix& weights, int64_t rows);
}  // namespace cuda
MatmulFn matmul;  // for callers; records while exec captures

}  // namespace quire::ops
