// What a warp of decode does with one tile: row tiles of 8 queries each, against the keys and values that lie in a
// stage of shared memory, online softmax, all products in tensor cores.
//
//   scores    [16 rows, 8 keys] = Q . K^T
//   results   [16 columns, 8 rows] += V^T . P^T
//
// The results are transposed because of the sizes: few queries fill 8 rows and not 16, which halves the registers and
// the products. And a lane's scores are just what it must have of P^T: row t / 4 of each row tile, keys 2 * (t % 4) and
// the next. Its results are of other rows, 2 * (t % 4) and the next, so what rescales these comes from other lanes.
//
// Where there are only 8 rows, the 16 of the scores are these twice, with the even and with the odd sixteens of dims.
// Keys are multiplied with both, their even dims into one sum, the odd ones into another, and of each sum only the half
// that fits is taken.
//
// Rows of K and V lie in the stage as in global memory, K's first, then V's; their 16-byte pieces are permuted by the
// row's number so that eight rows never share a bank.
//
// K and V of 16 bits are multiplied as they are. e4m3 is multiplied as f16, in which its values are exact, and the
// queries' rows are scaled into the range of f16 by a power of two each. A piece then has 16 elements where a fragment
// expects 8, and the order is made to fit:
//   keys     a lane gets dims 4t .. 4t + 3 of a piece (t = lane % 4), so it takes the same dims of its queries
//   values   transposed, a lane gets columns 2c and 2c + 1 of two keys; a piece's even columns are the upper half of a
//            tile of results, its odd ones the lower
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/gpu_sizes.h"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda {

constexpr int32_t kRowsInTile = 8;  // rows of queries in a tile of results

// The K and V of one head, and how many rows of queries a warp takes against them: kRowTiles x 8.
// kPlain: every sequence is one tile, and the cut is not fixed (decode_cut.h).
template <class Stored, int32_t kHeadDim, int32_t kTiles, bool kPlain>
struct Elements {
  static constexpr bool kIsPlain = kPlain;
  static constexpr bool kIsNarrow = std::is_same_v<Stored, __nv_fp8_e4m3>;
  using Product = std::conditional_t<kIsNarrow, __half, Stored>;
  static constexpr int32_t kDim = kHeadDim;
  static constexpr int32_t kRowBytes = kDim * (kIsNarrow ? 1 : 2);
  static constexpr int32_t kPieces = kRowBytes / 16;
  static constexpr int32_t kRowTiles = kTiles, kRows = kRowTiles * kRowsInTile;
  static constexpr int32_t kM16Tiles = (kRowTiles + 1) / 2;
  static constexpr DecodeSizes kSizes{.element = kIsNarrow ? 1 : 2, .row_tiles = kRowTiles, .dim = kDim};
  static constexpr int32_t kWarps = kSizes.warps(), kThreads = kWarps * kWarp;
  static constexpr int32_t kKeys = kSizes.keys();  // of a tile
  static constexpr int32_t kKeysAtOnce = 16;
  static constexpr int32_t kStageBytes = kSizes.stage_bytes();
};

// Where 16-byte piece `piece` of row `row` lies. Rows of 64 bytes share a line of the banks by twos.
template <class E>
__device__ constexpr uint32_t piece_at(int32_t row, int32_t piece) {
  const int32_t turn = E::kPieces >= 8 ? row & 7 : row / 2 & 3;
  return row * E::kRowBytes + ((piece ^ turn) << 4);
}

// The same for a row and piece that are sums without carries, one summand known beforehand: no more than one
// instruction. `place` is that of the other summand; stages begin at multiples of a row's bytes.
template <class E>
__device__ uint32_t piece_from(uint32_t place, int32_t rows, int32_t pieces) {
  return (place ^ (piece_at<E>(rows, pieces) % E::kRowBytes)) + rows * E::kRowBytes;
}

// As the left operand of a product: rows t / 4 and t / 4 + 8 of each 16, t being the lane.
template <class E>
struct Queries {
  static constexpr bool kIsTwice = E::kRowTiles == 1;  // the upper 8 rows are the lower ones with the next 16 dims
  uint32_t words[E::kM16Tiles][E::kDim / (kIsTwice ? 32 : 16)][4];
  float scale[E::kRowTiles];  // of row t / 4 of each row tile: makes of products with keys scores in powers of two

  // Of row t / 4 of a row tile, the first or the second word of 16 dims.
  __device__ uint32_t& word(int32_t row_tile, int32_t step, int32_t second) {
    return kIsTwice ? words[0][step / 2][second * 2 + step % 2] : words[row_tile / 2][step][second * 2 + row_tile % 2];
  }
  // To be multiplied with these 16 dims of keys.
  __device__ const uint32_t (&of_step(int32_t m16, int32_t step) const)[4] {
    return words[m16][kIsTwice ? step / 2 : step];
  }
};

// A warp's share of a split.
template <class E>
struct Sums {
  float out[E::kRowTiles][E::kDim / 16][4] = {};  // store_rows() says of which columns and rows
  float row_max[E::kRowTiles];                    // of row t / 4 of each row tile, in powers of two
  float sum[E::kRowTiles] = {};                   // of this thread's keys alone until the end

  __device__ Sums() {
#pragma unroll
    for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile) row_max[row_tile] = -INFINITY;
  }
};

// Keys that a row sees, those in pages and those of its branch; counted along the sequence.
struct Seen {
  int32_t first, count;
  int32_t branch_first, branch_count;

  __device__ bool operator()(int32_t key) const {
    return static_cast<uint32_t>(key - first) < static_cast<uint32_t>(count) ||
           static_cast<uint32_t>(key - branch_first) < static_cast<uint32_t>(branch_count);
  }
};

// --- queries

template <class E>
__device__ void load_words(const uint32_t* row, bool exists, int32_t row_tile, Queries<E>& q) {
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (int32_t step = 0; step < E::kDim / 16; ++step) {
    q.word(row_tile, step, 0) = exists ? row[step * 8 + lane % 4] : 0;
    q.word(row_tile, step, 1) = exists ? row[step * 8 + lane % 4 + 4] : 0;
  }
}

// A row of bf16 as f16: its numbers are brought into the upper range of f16 by a power of two. What is then below its
// range is less than the rounding of the sum. Returns the inverse of that power.
template <class E>
__device__ float scale_to_f16(uint32_t (&words)[E::kDim / 16][2]) {
  constexpr int32_t kBias = 127, kUpper = 14, kLeast = -100;  // the power and its inverse stay normal
  constexpr uint32_t kMagnitudes = 0x7fff7fff;
  uint32_t most = 0;  // of even and of odd columns; as integers, magnitudes are in the same order
#pragma unroll
  for (int32_t i = 0; i < E::kDim / 8; ++i) most = __vmaxu2(most, words[i / 2][i % 2] & kMagnitudes);
  most = __vmaxu2(most, __shfl_xor_sync(~0u, most, 1));
  most = __vmaxu2(most, __shfl_xor_sync(~0u, most, 2));
  const auto greatest = static_cast<int32_t>(max(most & 0xffff, most >> 16));
  const int32_t exponent = kUpper - max((greatest >> 7) - kBias, kLeast);
  const float factor = __int_as_float((kBias + exponent) << 23);
#pragma unroll
  for (int32_t i = 0; i < E::kDim / 8; ++i) {
    uint32_t& word = words[i / 2][i % 2];
    const float2 both = __bfloat1622float2(bits_as<__nv_bfloat162>(word));
    word = pair<__half>(both.x * factor, both.y * factor);
  }
  return __int_as_float((kBias - exponent) << 23);
}

// Of either 16-bit type, as f16. Returns what undoes the scaling.
template <class E>
__device__ float load_scaled(Dtype type, const uint32_t* row, bool exists, int32_t row_tile, Queries<E>& q) {
  const int32_t lane = threadIdx.x % kWarp;
  uint32_t words[E::kDim / 16][2];
#pragma unroll
  for (int32_t i = 0; i < E::kDim / 8; ++i) words[i / 2][i % 2] = exists ? row[i / 2 * 8 + lane % 4 * 2 + i % 2] : 0;
  const float inverse = type == Dtype::bf16 ? scale_to_f16<E>(words) : 1;
#pragma unroll
  for (int32_t i = 0; i < E::kDim / 8; ++i) q.word(row_tile, i / 2, i % 2) = words[i / 2][i % 2];
  return inverse;
}

// --- keys

// Scores of kKeysAtOnce keys: [kM16Tiles] of [16 rows, 8 keys] each.
template <class E>
using Scores = float[E::kM16Tiles][E::kKeysAtOnce / 8][4];

// A lane's scores of row t / 4 of a row tile: with keys 2 * (t % 4) and the next of every 8.
template <class E, class Each>
__device__ void for_each_score(Scores<E>& scores, int32_t row_tile, const Each& each) {
#pragma unroll
  for (int32_t n = 0; n < E::kKeysAtOnce / 8; ++n)
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) each(scores[row_tile / 2][n][row_tile % 2 * 2 + i], n * 8 + i);
}

// Two sums of products, of the even and of the odd sixteens of dims: with 8 rows there must be two, and with more of
// them a row's bits are the same so, where that counts.
template <class E>
constexpr bool kInHalves = Queries<E>::kIsTwice || !E::kIsPlain;

// The odd sixteens' to the others': with 8 rows those are what a lane has of the upper 8.
template <class E>
__device__ void add_odd(const float (&odd)[4], float (&scores)[4]) {
  constexpr int32_t kScores = Queries<E>::kIsTwice ? 2 : 4;
#pragma unroll
  for (int32_t i = 0; i < kScores; ++i) scores[i] += odd[4 - kScores + i];
}

// Sixteen keys at a time.
template <class E>
__device__ void mma_qk_by_sixteens(const Queries<E>& q, uint32_t keys, Scores<E>& scores) {
  using Product = typename E::Product;
  const int32_t lane = threadIdx.x % kWarp;
  const uint32_t place = keys + piece_at<E>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  Scores<E> odd = {};
#pragma unroll
  for (int32_t piece = 0; piece < E::kPieces; piece += 2) {
    uint32_t k[4];  // two pieces of keys 0 .. 7, two of keys 8 .. 15
    ldmatrix_x4(k, piece_from<E>(place, 0, piece));
#pragma unroll
    for (int32_t n = 0; n < 2; ++n)
#pragma unroll
      for (int32_t s = 0; s < E::kM16Tiles; ++s) {
        float(&sum)[4] = scores[s][n], (&other)[4] = (kInHalves<E> ? odd : scores)[s][n];
        if constexpr (E::kIsNarrow) {
          mma_m16n8k16<Product>(sum, q.of_step(s, piece), widen(k[2 * n]), widen(k[2 * n] >> 16));
          mma_m16n8k16<Product>(other, q.of_step(s, piece + 1), widen(k[2 * n + 1]), widen(k[2 * n + 1] >> 16));
        } else {
          mma_m16n8k16<Product>(piece % 4 ? other : sum, q.of_step(s, piece / 2), k[2 * n], k[2 * n + 1]);
        }
      }
  }
  if constexpr (kInHalves<E>) {
#pragma unroll
    for (int32_t i = 0; i < E::kM16Tiles * 2; ++i) add_odd<E>(odd[i / 2][i % 2], scores[i / 2][i % 2]);
  }
}

// Eight at a time, for which fewer registers do; of 16 bits.
template <class E>
__device__ void mma_qk_by_eights(const Queries<E>& q, uint32_t keys, Scores<E>& scores) {
  using Product = typename E::Product;
  const int32_t lane = threadIdx.x % kWarp;
  const uint32_t place = keys + piece_at<E>(lane % 8, lane / 8);
#pragma unroll
  for (int32_t n = 0; n < 2; ++n) {
    float odd[E::kM16Tiles][4] = {};
#pragma unroll
    for (int32_t piece = 0; piece < E::kPieces; piece += 4) {
      uint32_t k[4];  // four pieces: 32 dims
      ldmatrix_x4(k, piece_from<E>(place, n * 8, piece));
#pragma unroll
      for (int32_t s = 0; s < E::kM16Tiles; ++s) {
        mma_m16n8k16<Product>(scores[s][n], q.of_step(s, piece / 2), k[0], k[1]);
        mma_m16n8k16<Product>(odd[s], q.of_step(s, piece / 2 + 1), k[2], k[3]);
      }
    }
#pragma unroll
    for (int32_t s = 0; s < E::kM16Tiles; ++s) add_odd<E>(odd[s], scores[s][n]);
  }
}

template <class E>
__device__ void mma_qk(const Queries<E>& q, uint32_t keys, Scores<E>& scores) {
  static_assert(E::kKeysAtOnce == 16);
  if constexpr (kInHalves<E> && E::kRowTiles == 4)
    mma_qk_by_eights<E>(q, keys, scores);
  else
    mma_qk_by_sixteens<E>(q, keys, scores);
}

// --- values

// The two keys of each 16 bits side by side: of the even column low, of the odd one high.
inline __device__ uint32_t pair_keys(uint32_t v) { return __byte_perm(v, 0, 0x3120); }

// probs: of 16 keys, from row `first` of the values on, with each row tile.
template <class E>
__device__ void mma_pv(const uint32_t (&probs)[E::kRowTiles][2], uint32_t values, int32_t first, Sums<E>& sums) {
  using Product = typename E::Product;
  const int32_t lane = threadIdx.x % kWarp;
  const uint32_t place = values + piece_at<E>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int32_t piece = 0; piece < E::kPieces; piece += 2) {
    uint32_t v[4];  // two pieces of keys 0 .. 7, two of keys 8 .. 15
    ldmatrix_x4_trans(v, piece_from<E>(place, first, piece));
    if constexpr (E::kIsNarrow) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const uint32_t low = pair_keys(v[i]), high = pair_keys(v[2 + i]);
        const uint32_t columns[4] = {widen(low), widen(low >> 16), widen(high), widen(high >> 16)};
#pragma unroll
        for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile)
          mma_m16n8k16<Product>(sums.out[row_tile][piece + i], columns, probs[row_tile][0], probs[row_tile][1]);
      }
    } else {
#pragma unroll
      for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile)
        mma_m16n8k16<Product>(sums.out[row_tile][piece / 2], v, probs[row_tile][0], probs[row_tile][1]);
    }
  }
}

// --- softmax
//
// Products that the compiler may or may not fuse with a sum are written as one or the other: the same row has the same
// bits with any number of row tiles.

// cap * tanh(x / cap). Its error is that of a number as large as cap, less than a probability's rounding.
inline __device__ float capped(float x, float cap, float twice_log2e_of_cap) {
  return __fsub_rn(cap, __fdividef(2 * cap, 1 + fast_exp2(x * twice_log2e_of_cap)));
}

template <class E>
__device__ void scale_scores(const Queries<E>& q, float cap, Scores<E>& scores) {
#pragma unroll
  for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile)
    for_each_score<E>(scores, row_tile, [&](float& score, int32_t) { score = __fmul_rn(score, q.scale[row_tile]); });
  if (cap <= 0) return;
  const float factor = 2 * kLog2e / cap;
#pragma unroll
  for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile)
    for_each_score<E>(scores, row_tile, [&](float& score, int32_t) { score = capped(score, cap, factor); });
}

// Scores become powers of two relative to the row's maximum; returns what the sums so far are rescaled by.
template <class E>
__device__ float online_softmax(Scores<E>& scores, int32_t row_tile, Sums<E>& sums) {
  float row_max = -INFINITY, sum = 0;
  for_each_score<E>(scores, row_tile, [&](float& score, int32_t) { row_max = fmaxf(row_max, score); });
  row_max = fmaxf(sums.row_max[row_tile], quad_max(row_max));
  const float base = row_max == -INFINITY ? 0 : row_max;
  const float rescale = sums.row_max[row_tile] == row_max ? 1 : fast_exp2(sums.row_max[row_tile] - row_max);
  for_each_score<E>(scores, row_tile, [&](float& score, int32_t) {
    score = fast_exp2(score - base);
    sum += score;
  });
  sums.row_max[row_tile] = row_max;
  sums.sum[row_tile] = __fmaf_rn(sums.sum[row_tile], rescale, sum);
  return rescale;
}

// factor: of row t / 4. The results are of rows 2 * (t % 4) and the next.
template <class E>
__device__ void rescale_out(float factor, int32_t row_tile, Sums<E>& sums) {
  const int32_t lane = threadIdx.x % kWarp;
  const float factors[2] = {__shfl_sync(~0u, factor, lane % 4 * 8), __shfl_sync(~0u, factor, lane % 4 * 8 + 4)};
#pragma unroll
  for (int32_t d = 0; d < E::kDim / 16; ++d)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) sums.out[row_tile][d][i] *= factors[i % 2];
}

// Of kKeysAtOnce keys: what products of theirs become, and their values, which lie at `values`. mask(scores) sets those
// that are not seen to -infinity.
template <class E, class Mask>
__device__ void fold_scores(const AttendArgs& args, const Queries<E>& q, Scores<E>& scores, uint32_t values,
                            const Mask& mask, Sums<E>& sums) {
  using Product = typename E::Product;
  scale_scores<E>(q, args.softcap * kLog2e, scores);
  mask(scores);
  float rescale[E::kRowTiles];
  bool do_rescale = false;
#pragma unroll
  for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile) {
    rescale[row_tile] = online_softmax<E>(scores, row_tile, sums);
    do_rescale |= rescale[row_tile] != 1;
  }
  if (__any_sync(~0u, do_rescale)) {
#pragma unroll
    for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile) rescale_out<E>(rescale[row_tile], row_tile, sums);
  }
#pragma unroll
  for (int32_t first = 0; first < E::kKeysAtOnce; first += 16) {
    uint32_t probs[E::kRowTiles][2];
#pragma unroll
    for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile)
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const float* of_row = &scores[row_tile / 2][first / 8 + i][row_tile % 2 * 2];
        probs[row_tile][i] = pair<Product>(of_row[0], of_row[1]);
      }
    mma_pv<E>(probs, values, first, sums);
  }
}

// keys, values: where they lie, of kKeysAtOnce keys.
template <class E, class Mask>
__device__ void fold_tile(const AttendArgs& args, const Queries<E>& q, uint32_t keys, uint32_t values, const Mask& mask,
                          Sums<E>& sums) {
  Scores<E> scores = {};
  mma_qk<E>(q, keys, scores);
  fold_scores<E>(args, q, scores, values, mask, sums);
}

// --- results

// Where a column of a row lies when a warp leaves its sums: the lanes write eights of columns of four rows at a time,
// 0, 2, 4 and 6 or 1, 3, 5 and 7, which are to lie in different banks.
template <class E>
__device__ int32_t place_of(int32_t row, int32_t column) {
  return row * E::kDim + ((column / 8 ^ (row / 2 & 3)) * 8) + column % 8;
}

// What this thread has of a row tile: rows 2 * (t % 4) and the next; of each 16 columns t / 4 and t / 4 + 8, or
// 2 * (t / 4) and the next where they are narrow. To f32 [kRowsInTile, kDim] as place_of() says, only rows before
// `rows`.
template <class E>
__device__ void store_rows(const Sums<E>& sums, int32_t row_tile, int32_t rows, float* to) {
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    const int32_t row = lane % 4 * 2 + i;
    if (row >= rows) continue;
#pragma unroll
    for (int32_t d = 0; d < E::kDim / 16; ++d) {
      const float first = sums.out[row_tile][d][i], second = sums.out[row_tile][d][2 + i];
      if constexpr (E::kIsNarrow) {
        *reinterpret_cast<float2*>(to + place_of<E>(row, d * 16 + lane / 4 * 2)) = {first, second};
      } else {
        to[place_of<E>(row, d * 16 + lane / 4)] = first;
        to[place_of<E>(row, d * 16 + lane / 4 + 8)] = second;
      }
    }
  }
}

}  // namespace quire::attn::cuda
