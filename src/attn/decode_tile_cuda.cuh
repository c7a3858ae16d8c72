// What a warp of decode does with one tile: 16 rows of queries against the keys and values that lie in a stage of
// shared memory, online softmax, all products in tensor cores.
//
// Rows of K and V lie in the stage as in global memory, K's first, then V's; their 16-byte pieces are permuted by the
// row's number so that eight rows never share a bank.
//
// K and V of 16 bits are multiplied as they are. e4m3 is multiplied as f16, in which its values are exact, and the
// queries' rows are scaled into the range of f16 by a power of two each. A piece then has 16 elements where a fragment
// expects 8, and the order is made to fit:
//   keys     a lane gets dims 4t .. 4t + 3 of a piece (t = lane % 4), so it takes the same dims of its queries
//   values   transposed, a lane gets columns 2c and 2c + 1 of two keys; of the even and the odd columns of a piece is
//            made one tile of the result each, so a lane ends with columns 4t .. 4t + 3 of the piece
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/tensor_core_cuda.cuh"

namespace quire::attn::cuda {

constexpr int32_t kRows = 16;  // of a tensor core's tile

// The K and V of one head.
template <class Stored, int32_t kHeadDim>
struct Elements {
  static constexpr bool kIsNarrow = std::is_same_v<Stored, __nv_fp8_e4m3>;
  using Product = std::conditional_t<kIsNarrow, __half, Stored>;
  static constexpr int32_t kDim = kHeadDim;
  static constexpr int32_t kRowBytes = kDim * (kIsNarrow ? 1 : 2);
  static constexpr int32_t kPieces = kRowBytes / 16;
  static constexpr int32_t kKeys = kIsNarrow ? 32 : 16;  // of a tile
  static constexpr int32_t kStageBytes = 2 * kKeys * kRowBytes;
};

// Where 16-byte piece `piece` of row `row` lies. Rows of 64 bytes share a line of the banks by twos.
template <class E>
__device__ uint32_t piece_at(uint32_t base, int32_t row, int32_t piece) {
  const int32_t turn = E::kPieces >= 8 ? row & 7 : row / 2 & 3;
  return base + row * E::kRowBytes + ((piece ^ turn) << 4);
}

// Rows t / 4 and t / 4 + 8 of a tile, t being the lane.
template <class E>
struct Queries {
  uint32_t words[E::kDim / 16][4];
  float scale[2];  // makes of their products with keys scores in powers of two
};

// A warp's share of a part, of the same two rows; leave_row() says which columns.
template <class E>
struct Sums {
  float out[E::kDim / 8][4] = {};
  float top[2] = {-INFINITY, -INFINITY};  // in powers of two
  float sum[2] = {0, 0};                  // of this thread's keys alone until the end
};

// Keys that the thread's two rows see, those in pages and those of the row's branch; counted along the line.
struct Seen {
  int32_t first[2], count[2];
  int32_t branch_first[2], branch_count[2];
  int32_t branches;  // where they begin

  __device__ bool operator()(int32_t row, int32_t key, bool has_branch) const {
    return static_cast<uint32_t>(key - first[row]) < static_cast<uint32_t>(count[row]) ||
           (has_branch && static_cast<uint32_t>(key - branch_first[row]) < static_cast<uint32_t>(branch_count[row]));
  }
};

// --- queries

template <class E>
__device__ void load_words(const uint32_t* row, bool exists, int32_t half, Queries<E>& q) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int32_t step = 0; step < E::kDim / 16; ++step) {
    q.words[step][half] = exists ? row[step * 8 + lane % 4] : 0;
    q.words[step][2 + half] = exists ? row[step * 8 + lane % 4 + 4] : 0;
  }
}

inline __device__ float2 unpack(Dtype type, uint32_t word) {
  return type == Dtype::bf16 ? __bfloat1622float2(bits_as<__nv_bfloat162>(word))
                             : __half22float2(bits_as<__half2>(word));
}

// A power of two by which numbers up to `most` come into the upper range of f16. What is then below its range is less
// than the rounding of the sum.
inline __device__ float f16_factor(float most) {
  constexpr int32_t kBias = 127, kUpper = 14, kLeast = -100;  // the factor and its inverse stay normal
  const int32_t exponent = max(static_cast<int32_t>(__float_as_uint(most) >> 23) - kBias, kLeast);
  return __uint_as_float(static_cast<uint32_t>(kUpper - exponent + kBias) << 23);
}

// Of either 16-bit type, as f16. Returns what undoes the scaling.
template <class E>
__device__ float load_scaled(Dtype type, const uint32_t* row, bool exists, int32_t half, Queries<E>& q) {
  const int32_t lane = threadIdx.x % 32;
  uint32_t words[E::kDim / 16][2];
  float most = 0;
#pragma unroll
  for (int32_t step = 0; step < E::kDim / 16; ++step)
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      words[step][i] = exists ? row[step * 8 + lane % 4 * 2 + i] : 0;
      const float2 both = unpack(type, words[step][i]);
      most = fmaxf(most, fmaxf(fabsf(both.x), fabsf(both.y)));
    }
  const float factor = f16_factor(quad_max(most));
#pragma unroll
  for (int32_t step = 0; step < E::kDim / 16; ++step)
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const float2 both = unpack(type, words[step][i]);
      q.words[step][2 * i + half] = pair<__half>(both.x * factor, both.y * factor);
    }
  return 1 / factor;
}

// --- keys

// One key's sum is taken in two halves where there are too few keys to keep the tensor cores busy: a product that is
// added to another waits for it.
template <class E>
__device__ void multiply_keys(const Queries<E>& q, uint32_t tile, float (&scores)[E::kKeys / 8][4]) {
  using Product = typename E::Product;
  const int32_t lane = threadIdx.x % 32;
  const int32_t row = lane / 16 * 8 + lane % 8, second = lane / 8 % 2;
  float others[E::kKeys / 8][4] = {};
#pragma unroll
  for (int32_t first = 0; first < E::kKeys; first += 16)
#pragma unroll
    for (int32_t piece = 0; piece < E::kPieces; piece += 2) {
      uint32_t k[4];  // two pieces of keys 0 .. 7, two of keys 8 .. 15
      load_matrices(k, piece_at<E>(tile, first + row, piece + second));
#pragma unroll
      for (int32_t eight = 0; eight < 2; ++eight) {
        const int32_t n = first / 8 + eight;
        if constexpr (E::kIsNarrow) {
#pragma unroll
          for (int32_t i = 0; i < 2; ++i)
            multiply_add<Product>(scores[n], q.words[piece + i], widen(k[2 * eight + i]),
                                  widen(k[2 * eight + i] >> 16));
        } else {
          multiply_add<Product>(piece % 4 ? others[n] : scores[n], q.words[piece / 2], k[2 * eight], k[2 * eight + 1]);
        }
      }
    }
#pragma unroll
  for (int32_t n = 0; n < E::kKeys / 8; ++n)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) scores[n][i] += others[n][i];
}

// --- values

// The two keys of each 16 bits side by side: of the even column low, of the odd one high.
inline __device__ uint32_t pair_keys(uint32_t v) { return __byte_perm(v, 0, 0x3120); }

// Of 16 keys, from row `first` of the values on.
template <class E>
__device__ void multiply_values(const uint32_t (&weights)[4], uint32_t values, int32_t first, Sums<E>& sums) {
  using Product = typename E::Product;
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int32_t piece = 0; piece < E::kPieces; piece += 2) {
    uint32_t v[4];  // keys 0 .. 7 and 8 .. 15 of a piece, then of the next
    load_matrices_transposed(v, piece_at<E>(values, first + lane % 16, piece + lane / 16));
#pragma unroll
    for (int32_t i = 0; i < 2; ++i)
      if constexpr (E::kIsNarrow) {
        const uint32_t low = pair_keys(v[2 * i]), high = pair_keys(v[2 * i + 1]);
        multiply_add<Product>(sums.out[2 * (piece + i)], weights, widen(low), widen(high));
        multiply_add<Product>(sums.out[2 * (piece + i) + 1], weights, widen(low >> 16), widen(high >> 16));
      } else {
        multiply_add<Product>(sums.out[piece + i], weights, v[2 * i], v[2 * i + 1]);
      }
  }
}

// --- softmax

template <class E>
__device__ void scale_scores(const Queries<E>& q, float cap, float (&scores)[E::kKeys / 8][4]) {
#pragma unroll
  for (int32_t n = 0; n < E::kKeys / 8; ++n)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) scores[n][i] *= q.scale[i / 2];
  if (cap <= 0) return;
#pragma unroll
  for (int32_t n = 0; n < E::kKeys / 8; ++n)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) scores[n][i] = cap * tanhf(scores[n][i] / cap);
}

// Scores become powers of two relative to the rows' tops, with what is not seen at zero.
template <class E>
__device__ void weigh(const AttendArgs& args, const Queries<E>& q, const Seen& seen, int32_t first_key,
                      float (&scores)[E::kKeys / 8][4], Sums<E>& sums) {
  constexpr int32_t kEights = E::kKeys / 8;
  const int32_t lane = threadIdx.x % 32;
  const bool has_branch = first_key + E::kKeys > seen.branches;
  float tops[2] = {-INFINITY, -INFINITY}, shrink[2];
  scale_scores<E>(q, args.softcap * kLog2e, scores);
#pragma unroll
  for (int32_t n = 0; n < kEights; ++n)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t key = first_key + n * 8 + lane % 4 * 2 + i % 2, row = i / 2;
      if (!seen(row, key, has_branch)) scores[n][i] = -INFINITY;
      tops[row] = fmaxf(tops[row], scores[n][i]);
    }
#pragma unroll
  for (int32_t row = 0; row < 2; ++row) {
    const float top = fmaxf(sums.top[row], quad_max(tops[row]));
    const float base = top == -INFINITY ? 0 : top;
    shrink[row] = sums.top[row] == top ? 1 : exp2f(sums.top[row] - top);
    sums.top[row] = top;
    sums.sum[row] *= shrink[row];
#pragma unroll
    for (int32_t n = 0; n < kEights; ++n)
#pragma unroll
      for (int32_t i = 2 * row; i < 2 * row + 2; ++i) {
        scores[n][i] = exp2f(scores[n][i] - base);
        sums.sum[row] += scores[n][i];
      }
  }
  if (!__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) return;
#pragma unroll
  for (int32_t d = 0; d < E::kDim / 8; ++d)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) sums.out[d][i] *= shrink[i / 2];
}

template <class E>
__device__ void fold_tile(const AttendArgs& args, const Queries<E>& q, const Seen& seen, int32_t first_key,
                          uint32_t tile, Sums<E>& sums) {
  using Product = typename E::Product;
  float scores[E::kKeys / 8][4] = {};
  multiply_keys<E>(q, tile, scores);
  weigh<E>(args, q, seen, first_key, scores, sums);
#pragma unroll
  for (int32_t n = 0; n < E::kKeys / 8; n += 2) {
    const uint32_t weights[4] = {pair<Product>(scores[n][0], scores[n][1]), pair<Product>(scores[n][2], scores[n][3]),
                                 pair<Product>(scores[n + 1][0], scores[n + 1][1]),
                                 pair<Product>(scores[n + 1][2], scores[n + 1][3])};
    multiply_values<E>(weights, tile + E::kKeys * E::kRowBytes, n * 8, sums);
  }
}

// --- results

// Where a column of a row lies when a warp leaves its sums: eights of columns are permuted as pieces are.
template <class E>
__device__ int32_t place_of(int32_t row, int32_t column) {
  return row * E::kDim + ((column / 8 ^ (row & 7)) * 8) + column % 8;
}

// The columns that this thread has of row t / 4 + 8 * half, to f32 [kRows, kDim] as place_of() says.
template <class E>
__device__ void leave_row(const Sums<E>& sums, int32_t half, float* to) {
  const int32_t lane = threadIdx.x % 32, row = lane / 4 + half * 8;
  if constexpr (E::kIsNarrow) {
#pragma unroll
    for (int32_t piece = 0; piece < E::kPieces; ++piece) {
      const float(&even)[4] = sums.out[2 * piece], (&odd)[4] = sums.out[2 * piece + 1];
      *reinterpret_cast<float4*>(to + place_of<E>(row, piece * 16 + lane % 4 * 4)) = {
          even[2 * half], odd[2 * half], even[2 * half + 1], odd[2 * half + 1]};
    }
  } else {
#pragma unroll
    for (int32_t n = 0; n < E::kDim / 8; ++n)
      *reinterpret_cast<float2*>(to + place_of<E>(row, n * 8 + lane % 4 * 2)) = {sums.out[n][2 * half],
                                                                                 sums.out[n][2 * half + 1]};
  }
}

}  // namespace quire::attn::cuda
