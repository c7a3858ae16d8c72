// Inside matmul on a GPU: what the kernels for few rows do with a finished tile of 16 outputs. A thread has two sums of
// a token, a whole warp those of eight pairs of outputs for four tokens; lane / 4 counts the pairs.
//
//   RowsEnd    rows of results, and of Store::add the next norm's stream beside them
//   HeadsEnd   queries, keys and values: rotated, each to its place
//
// Which weight rows are a tile's pairs is the end's to say: two gates and ups, or the two numbers that rope turns
// together, meet in one thread. An end is made before the kernel waits for the one before it, and loads what it adds
// after that.
#pragma once
#include "ops/matmul_cuda.cuh"

namespace quire::ops::cuda {

struct RowPair {
  int32_t low, high;
};

template <PackedMatrix::Join kJoin>
class RowsEnd {
 public:
  __device__ RowsEnd(const Product&, int32_t tile) : tile_(tile) {}
  __device__ RowPair rows(int32_t pair) const {
    const int32_t low = tile_ * static_cast<int32_t>(kRowGroup) + pair;
    return {low, low + static_cast<int32_t>(kHalfGroup)};
  }
  __device__ void load(const Product& p, int32_t token) {
    token_ = token;
    finish_ = Finish<kJoin>(p, rows(threadIdx.x % 32 / 4).low, token);
    if (has_next(p)) next_weight_ = finish_.at_columns(p.next.weight);
  }
  // By a whole warp; of tokens that are not alive nothing is stored.
  __device__ void store(const Product& p, float low, float high, bool alive) const {
    if (!has_next(p)) {
      if (alive) finish_.store(p, low, high);
      return;
    }
    const float2 x = finish_.results(p, low, high);  // outputs are whole tiles: all are there
    float squares = x.x * x.x + x.y * x.y;
#pragma unroll
    for (int32_t step = 4; step < 32; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
    if (!alive) return;
    finish_.put_results(p, x);
    const RowPair columns = rows(threadIdx.x % 32 / 4);
    auto* row = reinterpret_cast<__nv_bfloat16*>(p.next.rows + static_cast<int64_t>(token_) * p.outputs);
    row[columns.low] = __float2bfloat16_rn(x.x * next_weight_.x);
    row[columns.high] = __float2bfloat16_rn(x.y * next_weight_.y);
    const int32_t tiles = p.outputs / static_cast<int32_t>(kRowGroup);
    if (threadIdx.x % 32 < 4) p.next.squares[static_cast<int64_t>(token_) * tiles + tile_] = squares;
  }

 private:
  static __device__ bool has_next(const Product& p) {
    return kJoin == PackedMatrix::Join::stack && p.next.weight != nullptr;
  }

  int32_t tile_, token_ = 0;
  Finish<kJoin> finish_;
  float2 next_weight_ = {};
};

class HeadsEnd {
 public:
  __device__ HeadsEnd(const Product& p, int32_t tile) {
    constexpr auto kGroup = static_cast<int32_t>(kRowGroup), kHalf = static_cast<int32_t>(kHalfGroup);
    const HeadTargets& h = p.heads;
    const int32_t turning_tiles = (h.heads + h.kv_heads) * (h.key_dim / kGroup);
    const bool is_value = tile >= turning_tiles;
    if (is_value) tile -= turning_tiles;
    const int32_t dim = is_value ? h.value_dim : h.key_dim;
    const int32_t head = tile / (dim / kGroup), in_head = tile - head * (dim / kGroup);
    is_query_ = !is_value && head < h.heads;
    first_row_ = (is_value ? (h.heads + h.kv_heads) * h.key_dim : 0) + head * dim;
    place_ = is_query_ ? first_row_ : first_row_ - (is_value ? h.heads + h.kv_heads : h.heads) * h.key_dim;
    data_ = is_query_ ? h.q.data : is_value ? h.values : h.keys;
    stride_ = is_query_ ? h.q.row_stride : is_value ? h.value_stride : h.key_stride;
    type_ = is_query_ ? h.q.type : h.kv_type;
    turns_ = !is_value && in_head * kHalf < h.half;
    pair_ = in_head * kHalf;
    const int32_t step = h.adjacent_pairs ? 1 : h.half;
    low_ = turns_ ? (h.adjacent_pairs ? 2 * pair_ : pair_) : 2 * pair_;
    high_ = low_ + (turns_ ? step : kHalf);
    step_ = turns_ && h.adjacent_pairs ? 2 : 1;
  }
  __device__ RowPair rows(int32_t pair) const {
    return {first_row_ + low_ + pair * step_, first_row_ + high_ + pair * step_};
  }
  __device__ void load(const Product& p, int32_t token) {
    const HeadTargets& h = p.heads;
    const int32_t pair = threadIdx.x % 32 / 4;
    const RowPair own = rows(pair);
    if (p.bias) bias_ = {p.bias[own.low], p.bias[own.high]};
    index_ = token;
    if (token >= p.room) return;
    if (!is_query_) index_ = *reinterpret_cast<const volatile int32_t*>(&h.slots[token].value);
    if (!turns_) return;
    const int64_t angle = static_cast<int64_t>(token) * h.half + pair_ + pair;
    turn_ = {__ldcg(h.cos + angle), __ldcg(h.sin + angle)};
  }
  __device__ void store(const Product&, float low, float high, bool alive) const {
    if (!alive) return;
    low = __fadd_rn(low, bias_.x);
    high = __fadd_rn(high, bias_.y);
    if (turns_) {
      const float turned = __fsub_rn(__fmul_rn(low, turn_.x), __fmul_rn(high, turn_.y));
      high = __fadd_rn(__fmul_rn(high, turn_.x), __fmul_rn(low, turn_.y));
      low = turned;
    }
    const int64_t at = static_cast<int64_t>(index_) * stride_ + place_ + threadIdx.x % 32 / 4 * step_;
    put(at + low_, low);
    put(at + high_, high);
  }

 private:
  __device__ void put(int64_t at, float x) const {
    if (type_ == Dtype::f32)
      reinterpret_cast<float*>(data_)[at] = x;
    else
      reinterpret_cast<uint16_t*>(data_)[at] =
          type_ == Dtype::bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
  }

  // Of the tile: where its pairs lie among the weight rows and in their head, and where that head goes.
  int32_t first_row_, low_, high_, step_;
  int32_t pair_;  // the first, among those of a head
  bool is_query_, turns_;
  std::byte* data_;
  int64_t stride_;  // of tokens or slots
  int32_t place_;   // of the head there
  Dtype type_;
  // Of the thread's token.
  int32_t index_ = 0;  // row or slot
  float2 bias_ = {}, turn_ = {};
};

}  // namespace quire::ops::cuda
