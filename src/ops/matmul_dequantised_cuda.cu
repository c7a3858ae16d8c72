// Products of many rows with quantised weights: both sides become bf16 in memory of the stream's own, a slice of
// outputs and of rows at a time, and the library multiplies them. The slices lie as packed_rows.h lays out dense
// weights.
#include <cuda_bf16.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "ops/cublaslt.h"
#include "ops/matmul_blocks_cuda.h"
#include "ops/matmul_cuda.cuh"
#include "ops/packed_blocks_cuda.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int64_t kWeightBytes = 64 << 20, kRowBytes = 64 << 20;
constexpr int32_t kThreadsOfEight = 256;

struct DequantisedMemory {
  Buffer weights{kWeightBytes, Place::device}, rows{kRowBytes + 64, Place::device};
};
// A stream's, for life: a graph may have captured the addresses.
DequantisedMemory& dequantised_memory(cudaStream_t stream) {
  static std::mutex mutex;
  static auto& memories = *new std::map<cudaStream_t, DequantisedMemory>;  // never ends, as the driver may have by then
  const std::lock_guard lock(mutex);
  return memories[stream];
}

__device__ uint32_t bf16_pair(float low, float high) {
  return quire::cuda::bits_as<uint32_t>(__floats2bfloat162_rn(low, high));
}
__device__ float signed_byte(uint32_t word, int32_t i) {
  return static_cast<float>(static_cast<int8_t>(word >> (8 * i)));
}

// --- rows

struct RowsToWiden {
  const int8_t* q;
  const float* scale;
  int64_t q_stride;
  int32_t inputs;
  int32_t first_row;
  const int32_t* live_rows;
  uint16_t* out;           // [rows, inputs]
  int32_t* live_of_slice;  // how many of the slice's rows are alive
};

// A thread takes eight numbers. grid: rows of the slice, eights
__global__ void __launch_bounds__(kThreadsOfEight) widen_rows_kernel(const __grid_constant__ RowsToWiden w) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = w.first_row + blockIdx.x;
  const int32_t at = (blockIdx.y * kThreadsOfEight + threadIdx.x) * 8;
  if (at == 0 && blockIdx.x == 0) *w.live_of_slice = max(0, *w.live_rows - w.first_row);
  if (at >= w.inputs || row >= *w.live_rows) return;
  const auto words = *reinterpret_cast<const uint2*>(w.q + row * w.q_stride + at);
  const float scale = w.scale[row * (w.inputs / 32) + at / 32];
  const auto pair = [&](uint32_t word, int32_t i) {
    return bf16_pair(signed_byte(word, i) * scale, signed_byte(word, i + 1) * scale);
  };
  *reinterpret_cast<uint4*>(w.out + int64_t{blockIdx.x} * w.inputs + at) = {pair(words.x, 0), pair(words.x, 2),
                                                                            pair(words.y, 0), pair(words.y, 2)};
}

// --- weights

struct TilesToWiden {
  const std::byte* panels;
  int64_t panel_bytes;
  int32_t first_tile, step;  // of the panels' tiles: every one, or every second where gate and up are apart
  int32_t tile_count, groups, blocks;
  uint16_t* out;  // [8 tile_count, 32 blocks]
};

template <BlockType T>
__device__ void widen_block(const Quad<T>& quad, const Scales<T>& scales, int32_t i, int32_t in_group, uint16_t* out) {
  constexpr float kUnit = 1.0f / static_cast<float>(1 << Quad<T>::kShift);
  const uint2 words = quad.words(i);
  const auto four = [&](uint32_t word, int32_t half) -> uint2 {
    const float scale = scales.scale(in_group, half) * kUnit;
    float least = 0;
    if constexpr (Scales<T>::kLayout.has_minimum)
      least = Scales<T>::kOf256 ? -scales.minimum(in_group) : scales.minimum(in_group);
    const auto number = [&](int32_t k) { return signed_byte(word, k) * scale + least; };
    return {bf16_pair(number(0), number(1)), bf16_pair(number(2), number(3))};
  };
  const uint2 low = four(words.x, 0), high = four(words.y, 1);
  const int32_t c = threadIdx.x % 4;
  if constexpr (T == BlockType::q6_k) {
    *reinterpret_cast<uint2*>(out + 4 * c) = low;
    *reinterpret_cast<uint2*>(out + 16 + 4 * c) = high;
  } else {
    *reinterpret_cast<uint4*>(out + 8 * c) = {low.x, low.y, high.x, high.y};
  }
}

// A warp takes a group of a tile.
template <BlockType T>
__global__ void __launch_bounds__(kThreadsOfEight) widen_tiles_kernel(const __grid_constant__ TilesToWiden w) {
  constexpr DeviceLayout kLayout = device_layout(T);
  griddep_wait();
  griddep_launch_dependents();
  const int32_t index = (blockIdx.x * kThreadsOfEight + threadIdx.x) / kWarp;
  const int32_t tile = index / w.groups, group = index % w.groups;
  if (tile >= w.tile_count) return;
  const int32_t place = w.first_tile + tile * w.step;
  const std::byte* from = w.panels + place / kPanelTiles * w.panel_bytes +
                          (group * kPanelTiles + place % kPanelTiles) * kLayout.group_bytes();
  const int64_t row = tile * kTileOutputs + threadIdx.x % kWarp / 4;
  const Scales<T> scales(from);
#pragma unroll
  for (int32_t quad = 0; quad < kLayout.quads; ++quad) {
    const Quad<T> weights(from + kLayout.head_bytes + quad * kLayout.quad_bytes());
#pragma unroll
    for (int32_t i = 0; i < kQuadBlocks; ++i) {
      const int32_t in_group = quad * kQuadBlocks + i, block = group * kLayout.group_blocks() + in_group;
      if (block < w.blocks) widen_block<T>(weights, scales, i, in_group, w.out + (row * w.blocks + block) * 32);
    }
  }
}

using WidenTiles = void (*)(TilesToWiden);
WidenTiles widen_tiles_of(BlockType type) {
  switch (type) {
    case BlockType::q8_0:
      return widen_tiles_kernel<BlockType::q8_0>;
    case BlockType::q4_0:
      return widen_tiles_kernel<BlockType::q4_0>;
    case BlockType::q4_1:
      return widen_tiles_kernel<BlockType::q4_1>;
    case BlockType::q5_0:
      return widen_tiles_kernel<BlockType::q5_0>;
    case BlockType::q5_1:
      return widen_tiles_kernel<BlockType::q5_1>;
    case BlockType::q4_k:
      return widen_tiles_kernel<BlockType::q4_k>;
    case BlockType::q5_k:
      return widen_tiles_kernel<BlockType::q5_k>;
    case BlockType::q6_k:
      return widen_tiles_kernel<BlockType::q6_k>;
    default:
      throw CheckError(cat("weights of type ", type, " are not quantised"));
  }
}

// --- slices

class Slices {
 public:
  Slices(const MatmulArgs& args, cudaStream_t stream)
      : args_(args), stream_(stream), memory_(dequantised_memory(stream)), inputs_(args.weights->inputs()) {}

  void multiply() const {
    const int64_t room = std::min(args_.in.rows, args_.out.rows);
    const int64_t at_once = kRowBytes / (inputs_ * int64_t{sizeof(uint16_t)});
    check(at_once > 0, "rows of ", inputs_, " inputs are too long for a GPU");
    for (int64_t first = 0; first < room; first += at_once) multiply_rows(first, std::min(at_once, room - first));
  }

 private:
  int32_t* live_of_slice() const { return reinterpret_cast<int32_t*>(memory_.rows.data() + kRowBytes); }
  uint16_t* weights() const { return reinterpret_cast<uint16_t*>(memory_.weights.data()); }
  uint16_t* rows() const { return reinterpret_cast<uint16_t*>(memory_.rows.data()); }

  void multiply_rows(int64_t first_row, int64_t count) const {
    const RowsToWiden widen{.q = args_.in.q,
                            .scale = args_.in.scale,
                            .q_stride = args_.in.q_stride,
                            .inputs = static_cast<int32_t>(inputs_),
                            .first_row = static_cast<int32_t>(first_row),
                            .live_rows = args_.live_rows,
                            .out = rows(),
                            .live_of_slice = live_of_slice()};
    const int64_t eights = (inputs_ / 8 + kThreadsOfEight - 1) / kThreadsOfEight;
    launch_after(widen_rows_kernel, dim3(static_cast<uint32_t>(count), static_cast<uint32_t>(eights)), kThreadsOfEight,
                 0, stream_, "matmul", widen);
    const auto parts = args_.weights->parts();
    if (args_.store == Store::silu_mul) return multiply_part(parts[0], true, first_row, count);
    for (const PackedMatrix::Part& part : parts) multiply_part(part, false, first_row, count);
  }

  // The part's outputs, or of a gate those of its up too.
  void multiply_part(const PackedMatrix::Part& part, bool pairs, int64_t first_row, int64_t count) const {
    const int64_t in_unit = pairs ? kTileOutputs : 2 * kTileOutputs, units = (part.outputs + in_unit - 1) / in_unit;
    const int64_t unit_bytes = 2 * kTileOutputs * inputs_ * int64_t{sizeof(uint16_t)},
                  at_once = kWeightBytes / unit_bytes;
    for (int64_t first = 0; first < units; first += at_once) {
      const int64_t taken = std::min(at_once, units - first);
      widen_units(part, pairs, first, taken);
      const int64_t column = first * in_unit, outputs = std::min(taken * in_unit, part.outputs - column);
      multiply_by_library({.weights = weights(),
                           .in = rows(),
                           .out = args_.out.row(first_row) + part.first_output + column,
                           .bias = args_.bias ? args_.bias + part.first_output + column : nullptr,
                           .live_rows = live_of_slice(),
                           .in_stride = inputs_,
                           .out_stride = args_.out.stride,
                           .outputs = static_cast<int32_t>(pairs ? 2 * outputs : outputs),
                           .inputs = static_cast<int32_t>(inputs_),
                           .room = static_cast<int32_t>(count),
                           .scale = args_.scale,
                           .norm_eps = 0,
                           .store = args_.store,
                           .join = pairs ? PackedMatrix::Join::gate_and_up : PackedMatrix::Join::stack,
                           .bf16_out = false},
                          stream_);
    }
  }

  void widen_units(const PackedMatrix::Part& part, bool pairs, int64_t first, int64_t units) const {
    const bool joined = args_.weights->join() == PackedMatrix::Join::gate_and_up;
    const int32_t step = joined && !pairs ? 2 : 1;
    const TilesToWiden widen{.panels = part.tiles,
                             .panel_bytes = part.tile_stride,
                             .first_tile = static_cast<int32_t>(2 * first * step),
                             .step = step,
                             .tile_count = static_cast<int32_t>(2 * units),
                             .groups = static_cast<int32_t>(device_layout(part.type).groups(inputs_)),
                             .blocks = static_cast<int32_t>(inputs_ / 32),
                             .out = weights()};
    const int64_t threads = int64_t{widen.tile_count} * widen.groups * kWarp;
    launch_after(widen_tiles_of(part.type),
                 dim3(static_cast<uint32_t>((threads + kThreadsOfEight - 1) / kThreadsOfEight)), kThreadsOfEight, 0,
                 stream_, "matmul", widen);
  }

  const MatmulArgs& args_;
  cudaStream_t stream_;
  DequantisedMemory& memory_;
  int64_t inputs_;
};

}  // namespace

void prepare_dequantised(cudaStream_t stream) { dequantised_memory(stream); }

std::span<uint16_t> dequantised_weights(cudaStream_t stream) {
  return {reinterpret_cast<uint16_t*>(dequantised_memory(stream).weights.data()), kWeightBytes / sizeof(uint16_t)};
}

bool suits_dequantised(const MatmulArgs& args) {
  const bool pairs = args.store == Store::silu_mul;
  return std::min(args.in.rows, args.out.rows) > kMostExactRows && !args.in.forms.q8x2 && !(pairs && args.bias) &&
         has_cublaslt();
}

void multiply_dequantised(const MatmulArgs& args, cudaStream_t stream) { Slices(args, stream).multiply(); }

}  // namespace quire::ops::cuda
