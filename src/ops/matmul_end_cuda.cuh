// Inside matmul on a GPU: what the kernels for few rows do with a finished tile of 16 outputs. A thread has two sums of
// a token, a whole warp those of eight pairs of outputs for four tokens; lane / 4 counts the pairs.
//
//   RowsEnd    rows of results, and of Store::add the next norm's stream beside them
//   HeadsEnd   queries, keys and values: rotated, each to its place
//
// Which weight rows are a tile's pairs is the end's to say (rows_of): two gates and ups, or the two numbers that rope
// turns together, meet in one thread.
#pragma once
#include "ops/matmul_cuda.cuh"

namespace quire::ops::cuda {

struct RowPair {
  int32_t low, high;
};

template <PackedMatrix::Join kJoin>
class RowsEnd : public Finish<kJoin> {
  using Base = Finish<kJoin>;

 public:
  static __device__ RowPair rows_of(const Product&, int32_t tile, int32_t pair) {
    const int32_t low = tile * static_cast<int32_t>(kRowGroup) + pair;
    return {low, low + static_cast<int32_t>(kHalfGroup)};
  }

  // After the wait for the kernel before.
  __device__ RowsEnd(const Product& p, int32_t tile, int32_t token)
      : Base(p, rows_of(p, tile, threadIdx.x % 32 / 4).low, token), tile_(tile), token_(token) {
    if (kJoin != PackedMatrix::Join::stack || !p.next.weight) return;
    if (this->has_low_) low_weight_ = p.next.weight[this->low_];
    if (this->has_high_) high_weight_ = p.next.weight[this->high_];
  }

  // By a whole warp; of tokens that are not alive nothing is stored.
  __device__ void store(const Product& p, float low, float high, bool alive) const {
    if (kJoin != PackedMatrix::Join::stack || !p.next.weight) {
      if (alive) Base::store(p, low, high);
      return;
    }
    const float2 x = this->results(p, low, high);
    float squares = (this->has_low_ ? x.x * x.x : 0) + (this->has_high_ ? x.y * x.y : 0);
#pragma unroll
    for (int32_t step = 4; step < 32; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
    if (!alive) return;
    this->put_results(p, x);
    auto* row = reinterpret_cast<__nv_bfloat16*>(p.next.rows + static_cast<int64_t>(token_) * p.outputs);
    if (this->has_low_) row[this->low_] = __float2bfloat16_rn(x.x * low_weight_);
    if (this->has_high_) row[this->high_] = __float2bfloat16_rn(x.y * high_weight_);
    if (threadIdx.x % 32 < 4)
      p.next.squares[static_cast<int64_t>(token_) * (p.outputs / static_cast<int32_t>(kRowGroup)) + tile_] = squares;
  }

 private:
  int32_t tile_, token_;
  float low_weight_ = 0, high_weight_ = 0;
};

class HeadsEnd {
  // A tile's place: `rotated` tells whether its pairs turn.
  struct Place {
    int32_t first_row;  // of the head
    int32_t kv_head;    // < 0: queries; counted on from keys to values
    int32_t head, in_head;
    bool rotated;
  };
  static __device__ Place place_of(const HeadTargets& h, int32_t tile) {
    constexpr auto kGroup = static_cast<int32_t>(kRowGroup), kHalf = static_cast<int32_t>(kHalfGroup);
    const int32_t rotating = (h.heads + h.kv_heads) * (h.key_dim / kGroup);
    const bool is_value = tile >= rotating;
    const int32_t dim = is_value ? h.value_dim : h.key_dim, in_part = is_value ? tile - rotating : tile;
    const int32_t head = in_part / (dim / kGroup), in_head = in_part - head * (dim / kGroup);
    return {.first_row = (is_value ? (h.heads + h.kv_heads) * h.key_dim : 0) + head * dim,
            .kv_head = is_value ? h.kv_heads + head : head - h.heads,
            .head = head,
            .in_head = in_head,
            .rotated = !is_value && in_head * kHalf < h.half};
  }
  // In its head.
  static __device__ RowPair columns_of(const HeadTargets& h, const Place& place, int32_t pair) {
    constexpr auto kGroup = static_cast<int32_t>(kRowGroup), kHalf = static_cast<int32_t>(kHalfGroup);
    if (!place.rotated) return {place.in_head * kGroup + pair, place.in_head * kGroup + pair + kHalf};
    const int32_t turning = place.in_head * kHalf + pair;
    if (h.adjacent_pairs) return {2 * turning, 2 * turning + 1};
    return {turning, turning + h.half};
  }

 public:
  static __device__ RowPair rows_of(const Product& p, int32_t tile, int32_t pair) {
    const Place place = place_of(p.heads, tile);
    const RowPair columns = columns_of(p.heads, place, pair);
    return {place.first_row + columns.low, place.first_row + columns.high};
  }

  __device__ HeadsEnd(const Product& p, int32_t tile, int32_t token) : token_(token), place_(place_of(p.heads, tile)) {
    const HeadTargets& h = p.heads;
    const int32_t pair = threadIdx.x % 32 / 4;
    columns_ = columns_of(h, place_, pair);
    if (p.bias) {
      low_bias_ = p.bias[place_.first_row + columns_.low];
      high_bias_ = p.bias[place_.first_row + columns_.high];
    }
    if (token >= p.room) return;
    if (place_.kv_head >= 0) slot_ = *reinterpret_cast<const volatile int32_t*>(&h.slots[token].value);
    if (!place_.rotated) return;
    const int64_t angle = static_cast<int64_t>(token) * h.half + place_.in_head * static_cast<int32_t>(kHalfGroup) + pair;
    cos_ = __ldcg(h.cos + angle);
    sin_ = __ldcg(h.sin + angle);
  }

  __device__ void store(const Product& p, float low, float high, bool alive) const {
    if (!alive) return;
    low = __fadd_rn(low, low_bias_);
    high = __fadd_rn(high, high_bias_);
    if (place_.rotated) {
      const float turned = __fsub_rn(__fmul_rn(low, cos_), __fmul_rn(high, sin_));
      high = __fadd_rn(__fmul_rn(high, cos_), __fmul_rn(low, sin_));
      low = turned;
    }
    const HeadTargets& h = p.heads;
    if (place_.kv_head < 0) {
      put(h.q.type, h.q.at(token_, place_.head), low, high);
    } else if (place_.kv_head < h.kv_heads) {
      put(h.kv_type, h.keys + (slot_ * h.key_stride + place_.kv_head * h.key_dim) * size_of(h.kv_type), low, high);
    } else {
      const int32_t head = place_.kv_head - h.kv_heads;
      put(h.kv_type, h.values + (slot_ * h.value_stride + head * h.value_dim) * size_of(h.kv_type), low, high);
    }
  }

 private:
  __device__ void put(Dtype type, std::byte* head, float low, float high) const {
    if (type == Dtype::f32) {
      reinterpret_cast<float*>(head)[columns_.low] = low;
      reinterpret_cast<float*>(head)[columns_.high] = high;
    } else {
      const bool is_bf16 = type == Dtype::bf16;
      auto* bits = reinterpret_cast<uint16_t*>(head);
      bits[columns_.low] = is_bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(low)) : __half_as_ushort(__float2half_rn(low));
      bits[columns_.high] =
          is_bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(high)) : __half_as_ushort(__float2half_rn(high));
    }
  }

  int32_t token_;
  Place place_;
  RowPair columns_;
  int64_t slot_ = 0;
  float low_bias_ = 0, high_bias_ = 0, cos_ = 0, sin_ = 0;
};

}  // namespace quire::ops::cuda
