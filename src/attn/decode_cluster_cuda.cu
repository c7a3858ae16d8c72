// Few queries of each of few sequences, keys of 16 bits: what counts is how long it takes from the queries to the
// results, so everything else is done before the queries are there, and nothing goes through memory on the way.
//
// A cluster of blocks has one sequence and kv head, and of several queries a tile of kRows (query, head) pairs: tiles
// read the same keys, all but the first of them from L2, so that several queries take hardly longer than one. Each of
// its blocks has a stretch of the keys by its rank in the cluster, kRoundKeys of them at a time:
//
//   keys      a warp has 32 of them, and loads them straight into registers, as products want them, in whole lines of
//             128 bytes: of half lines memory gives half as many bytes
//   values    of all warps lie in shared memory; each warp multiplies 16 columns of them with all probabilities, and
//             so no sums of several warps have to be added up
//   results   every block sends its own to the others, to each of them the columns that it is to write, and adds up
//             those that it is sent, in the order of the blocks
//
// If the caller says so (AttendArgs::keys_are_settled), the kernel before wrote no keys but this step's: all others of
// the first round are loaded before that kernel has ended. Two blocks have room in a multiprocessor, so the next
// layer's keys come while this one is at its products.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "attn/attend_cuda.cuh"
#include "attn/cluster_cuda.cuh"
#include "attn/decode_tile_cuda.cuh"
#include "base/hopper.cuh"

namespace quire::attn::cuda {
namespace {

using namespace quire::cuda::hopper;

constexpr int32_t kClusterThreads = 256, kClusterWarps = kClusterThreads / kWarp;
constexpr int32_t kRows = kMostClusterRows;  // (query, head) pairs of a kv head, those that are not there included
constexpr int32_t kRoundKeys = kClusterRoundKeys, kKeysOfWarp = kRoundKeys / kClusterWarps, kEights = kKeysOfWarp / 8;

template <class Stored, int32_t kHeadDim>
struct ClusterElements {
  using Product = Stored;
  static constexpr int32_t kDim = kHeadDim, kRowBytes = kDim * 2, kPieces = kRowBytes / 16;
  static constexpr int32_t kLines = kRowBytes / 128, kLinePieces = 8;
};

// A block's share of a cluster's results, as it is sent: what it is relative to and its sum of probabilities, for each
// row.
struct Share {
  float row_max, sum;
};

template <class E>
struct ClusterStorage {
  static constexpr int32_t kProbStride = kRoundKeys + 8;  // rows in different banks
  alignas(1024) std::byte values[kRoundKeys * E::kRowBytes];
  alignas(16) typename E::Product probs[kRows][kProbStride];
  alignas(16) float row_max[kRows][kClusterWarps], sum[kRows][kClusterWarps];  // of each warp's keys
  // What the cluster's blocks sent: [blocks, columns that this one writes, kRows], [blocks, kRows].
  alignas(16) float parts[E::kDim * kRows];
  Share shares[kMostClusterBlocks][kRows];
  Barrier all_sent;
};

// --- what the block has

// A cluster's rows. kSeveral: queries, which see different keys.
template <bool kSeveral>
struct RowTile {
  int32_t b, kv_head;
  int32_t first_query, queries;  // of the sequence, among all rows
  int32_t first, count;          // its (query, head) pairs of those of the sequence

  __device__ int32_t sent(const ClusterDecode& d) const { return kSeveral ? kRows : d.group; }
  __device__ int32_t query_of(const ClusterDecode& d, int32_t row) const {
    return kSeveral ? (first + row) / d.group : 0;
  }
  __device__ int32_t head_of(const ClusterDecode& d, int32_t row) const {
    return kv_head * d.group + (kSeveral ? (first + row) % d.group : row);
  }
};

// Nothing is read past the live count: nobody wrote that.
template <bool kSeveral>
__device__ RowTile<kSeveral> row_tile_of(const ClusterDecode& d, int32_t cluster) {
  const KeyView& keys = d.args.keys;
  const int32_t unit = cluster / d.args.kv.kv_heads, b = kSeveral ? unit / d.row_tiles : unit;
  RowTile<kSeveral> tile{.b = b,
                         .kv_head = cluster - unit * d.args.kv.kv_heads,
                         .first_query = b,
                         .queries = 1,
                         .first = 0,
                         .count = d.group};
  if constexpr (kSeveral) {
    const bool is_live = b < read_early(keys.live);
    tile.first_query = is_live ? read_early(keys.cu_q + b) : 0;
    tile.queries = is_live ? read_early(keys.cu_q + b + 1) - tile.first_query : 0;
    tile.first = (unit - b * d.row_tiles) * kRows;
    tile.count = min(kRows, tile.queries * d.group - tile.first);
  }
  return tile;
}

struct Stretch {
  const PageId* pages;
  int32_t first, end;  // keys
  int32_t newest;      // the first of this step's keys; none of the stretch's if that is no matter
};

template <bool kSeveral>
__device__ Stretch stretch_of(const ClusterDecode& d, const RowTile<kSeveral>& tile, int32_t rank) {
  const KeyView& keys = d.args.keys;
  const int32_t b = tile.b;
  if (b >= read_early(keys.live)) return {};
  const int32_t length = read_early(keys.lengths + b);
  const TablePlace place = table_place(keys, b);
  const int32_t newest = length - tile.queries;
  const int32_t position = newest + tile.query_of(d, 0);  // of the first query
  const int32_t seen_first = d.args.window >= 0 && keys.causal ? max(0, position - d.args.window) : 0;
  const int32_t seen_end = kSeveral && keys.causal ? newest + tile.query_of(d, tile.count - 1) + 1 : length;
  const int32_t blocks = 1 << d.cluster_shift;
  const int32_t each = ((seen_end - seen_first + blocks - 1 >> d.cluster_shift) + 15) & ~15;
  const int32_t first = seen_first + rank * each;
  return {.pages = place.in(keys), .first = first, .end = min(first + each, seen_end), .newest = newest};
}

// --- loading

// Eight keys are loaded by fours, a line of each at a time. Lane t has of key t / 4 % 4 of a four the piece t % 4 of
// each line if t < 16, else t % 4 + 4. Two words of each are a product's operand, whose columns are thus the first
// halves of four keys' lines, and then the second halves.
template <class E>
struct Keys {
  uint4 pieces[kEights][2][E::kLines];
};

constexpr int32_t kNoneLeftOut = kKeysOfWarp;

template <class E>
class RoundLoader {
 public:
  __device__ RoundLoader(const ClusterDecode& d, const Stretch& stretch, int32_t kv_head, std::byte* values)
      : d_(d),
        stretch_(stretch),
        keys_(d.args.kv.keys + kv_head * E::kRowBytes + (lane() % 4 + lane() / 16 * 4) * 16),
        values_(d.args.kv.values + kv_head * E::kRowBytes + lane() % E::kPieces * 16),
        policy_(evict_first_policy()),
        to_(shared_address(values) + warp() * kKeysOfWarp * E::kRowBytes) {}

  // Of the lane's key of the warp; in place of keys past `end` the warp's first is read again. There is one at least.
  __device__ int32_t look_up(int32_t round, int32_t end) const {
    const int32_t first = first_key(round), key = first + lane() < end ? first + lane() : first;
    const int32_t shift = d_.args.keys.page_size.shift();
    return slot_in_page(read_early(&stretch_.pages[key >> shift].value), shift, key);
  }

  __device__ void load_keys(int32_t slot, Keys<E>& keys) const {
#pragma unroll
    for (int32_t n = 0; n < kKeysOfWarp / 4; ++n)
      load_key(__shfl_sync(~0u, slot, n * 4 + lane() / 4 % 4), keys.pieces[n / 2][n % 2]);
  }

  // `but`: one of the warp's keys that is left out, or kNoneLeftOut; of several queries those behind it, too.
  template <bool kSeveral>
  __device__ void load_values(int32_t slot, int32_t but) const {
#pragma unroll
    for (int32_t i = 0; i < kKeysOfWarp; i += kRowsAtOnce) {
      const int32_t row = i + lane() / E::kPieces;
      const int32_t of_row = __shfl_sync(~0u, slot, row);
      if (kSeveral ? row < but : row != but) load_value(of_row, row);
    }
  }

  // One of the warp's keys.
  __device__ void load_one(int32_t slot, int32_t which, Keys<E>& keys) const {
    const int32_t of_one = __shfl_sync(~0u, slot, which);
#pragma unroll
    for (int32_t n = 0; n < kKeysOfWarp / 4; ++n)
      if (n * 4 + lane() / 4 % 4 == which) load_key(of_one, keys.pieces[n / 2][n % 2]);
    if (lane() < E::kPieces) load_value(of_one, which);
  }

  // Those from `from` on.
  __device__ void load_rest(int32_t slot, int32_t from, Keys<E>& keys) const {
#pragma unroll
    for (int32_t n = 0; n < kKeysOfWarp / 4; ++n) {
      const int32_t key = n * 4 + lane() / 4 % 4, of_key = __shfl_sync(~0u, slot, key);
      if (key >= from) load_key(of_key, keys.pieces[n / 2][n % 2]);
    }
#pragma unroll
    for (int32_t i = 0; i < kKeysOfWarp; i += kRowsAtOnce) {
      const int32_t row = i + lane() / E::kPieces, of_row = __shfl_sync(~0u, slot, row);
      if (row >= from) load_value(of_row, row);
    }
  }

  __device__ int32_t first_key(int32_t round) const { return round + warp() * kKeysOfWarp; }  // of the warp's
  __device__ int32_t warps_keys(int32_t round, int32_t end) const { return end - first_key(round); }

 private:
  static constexpr int32_t kRowsAtOnce = kWarp / E::kPieces;
  static __device__ int32_t lane() { return threadIdx.x % kWarp; }
  static __device__ int32_t warp() { return threadIdx.x / kWarp; }

  __device__ void load_key(int32_t slot, uint4 (&pieces)[E::kLines]) const {
    const std::byte* const from = address_of(keys_, static_cast<uint32_t>(slot), static_cast<uint32_t>(d_.key_bytes));
#pragma unroll
    for (int32_t i = 0; i < E::kLines; ++i) pieces[i] = load_piece(from + i * 128, policy_);
  }
  __device__ void load_value(int32_t slot, int32_t row) const {
    cp_async_by_policy(to_ + piece_at<E>(row, lane() % E::kPieces),
                       address_of(values_, static_cast<uint32_t>(slot), static_cast<uint32_t>(d_.value_bytes)), 0,
                       policy_);
  }

  const ClusterDecode& d_;
  const Stretch& stretch_;
  const std::byte *keys_, *values_;
  uint64_t policy_;
  uint32_t to_;
};

// As the left operand: rows t / 4 of the queries with the first half of a line, and in the place of the rows 8 below
// them the same with its second half. Two operands for each line.
template <class E>
struct ClusterQueries {
  uint32_t words[E::kLines][2][4];
};

template <class E, bool kSeveral>
__device__ void load_queries(const ClusterDecode& d, const RowTile<kSeveral>& tile, ClusterQueries<E>& q) {
  const int32_t lane = threadIdx.x % kWarp, row = min(lane / 4, tile.count - 1);
  const ConstHeadRows& rows = d.args.q;
  const auto* const from = reinterpret_cast<const uint4*>(
      rows.data +
      (int64_t{tile.first_query + tile.query_of(d, row)} * rows.row_stride + int64_t{tile.head_of(d, row)} * E::kDim) *
          2 +
      lane % 4 * 16);
#pragma unroll
  for (int32_t i = 0; i < E::kLines; ++i) {
    const uint4 first = __ldcg(from + i * E::kLinePieces), second = __ldcg(from + i * E::kLinePieces + 4);
    const uint32_t words[2][4] = {{first.x, second.x, first.y, second.y}, {first.z, second.z, first.w, second.w}};
    memcpy(q.words[i], words, sizeof(words));
  }
}

// --- products

// Of row t / 4 with keys 2 * (t % 4) and the next of each eight.
using KeyScores = float[kEights][2];

template <class E>
__device__ void scores_of(const ClusterDecode& d, const ClusterQueries<E>& q, const Keys<E>& keys, KeyScores& scores) {
  using Product = typename E::Product;
  const float scale = d.args.scale * d.args.kv.key_scale * kLog2e, cap = d.args.softcap * kLog2e;
#pragma unroll
  for (int32_t n = 0; n < kEights; ++n) {
    float sums[2][4] = {};  // of the first and of the last four keys
#pragma unroll
    for (int32_t i = 0; i < E::kLines; ++i) {
      const uint4 &first = keys.pieces[n][0][i], &last = keys.pieces[n][1][i];
      mma_m16n8k16<Product>(sums[0], q.words[i][0], first.x, first.y);
      mma_m16n8k16<Product>(sums[1], q.words[i][0], last.x, last.y);
      mma_m16n8k16<Product>(sums[0], q.words[i][1], first.z, first.w);
      mma_m16n8k16<Product>(sums[1], q.words[i][1], last.z, last.w);
    }
    // Sums with the lines' first halves are in the columns of lanes t % 4 < 2, in the upper rows; those with the second
    // halves in the others', in the lower ones. Lanes with the first halves get the first four keys.
    const bool has_second = threadIdx.x & 2;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const float given = has_second ? sums[0][2 + i] : sums[1][i], kept = has_second ? sums[1][2 + i] : sums[0][i];
      scores[n][i] = (kept + __shfl_xor_sync(~0u, given, 2)) * scale;
      if (cap > 0) scores[n][i] = capped(scores[n][i], cap, 2 * kLog2e / cap);
    }
  }
}

// Keys from `count` on are none.
__device__ void hide_from(int32_t count, KeyScores& scores) {
  const int32_t first = threadIdx.x % 4 * 2;
#pragma unroll
  for (int32_t n = 0; n < kEights; ++n)
#pragma unroll
    for (int32_t i = 0; i < 2; ++i)
      if (n * 8 + first + i >= count) scores[n][i] = -INFINITY;
}

// Of the warp's keys, which follow `first`, those that row t / 4 does not see.
template <bool kSeveral>
__device__ void hide_unseen(const ClusterDecode& d, const RowTile<kSeveral>& tile, const Stretch& stretch,
                            int32_t first, KeyScores& scores) {
  const int32_t row = min(static_cast<int32_t>(threadIdx.x) % kWarp / 4, tile.count - 1);
  const int32_t position = stretch.newest + tile.query_of(d, row);
  const int32_t from = d.args.window >= 0 ? position - d.args.window - first : 0, end = position + 1 - first;
#pragma unroll
  for (int32_t n = 0; n < kEights; ++n)
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t key = n * 8 + static_cast<int32_t>(threadIdx.x) % 4 * 2 + i;
      if (key < from || key >= end) scores[n][i] = -INFINITY;
    }
}

__device__ float max_of(const float (&of_warps)[kClusterWarps]) {
  float most = of_warps[0];
#pragma unroll
  for (int32_t i = 1; i < kClusterWarps; ++i) most = fmaxf(most, of_warps[i]);
  return most;
}
__device__ float sum_of(const float (&of_warps)[kClusterWarps]) {
  float sum = of_warps[0];
#pragma unroll
  for (int32_t i = 1; i < kClusterWarps; ++i) sum += of_warps[i];
  return sum;
}

// What the block has of its keys so far. `share`: of row t / 4. `out`: of 16 columns, which are the warp's; t / 4 and
// the one 8 further on, each of rows 2 * (t % 4) and the next.
struct Running {
  Share share{-INFINITY, 0};
  float out[4] = {};
};

// Probabilities of the block's keys relative to the greatest score so far, to shared memory, and what was added up so
// far made relative to it, too.
template <class E, bool kSeveral>
__device__ void softmax(KeyScores& scores, ClusterStorage<E>& storage, Running& running) {
  using Product = typename E::Product;
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4;
  float row_max = scores[0][0], sum = 0;
#pragma unroll
  for (int32_t i = 1; i < kEights * 2; ++i) row_max = fmaxf(row_max, scores[i / 2][i % 2]);
  row_max = quad_max(row_max);
  if (lane % 4 == 0) storage.row_max[row][warp] = row_max;
  __syncthreads();
  row_max = fmaxf(running.share.row_max, max_of(storage.row_max[row]));
  const float base = kSeveral && row_max == -INFINITY ? 0 : row_max;  // a row may see none of the block's keys
#pragma unroll
  for (int32_t n = 0; n < kEights; ++n) {
    const float first = fast_exp2(scores[n][0] - base), second = fast_exp2(scores[n][1] - base);
    sum += first + second;
    *reinterpret_cast<uint32_t*>(&storage.probs[row][warp * kKeysOfWarp + n * 8 + lane % 4 * 2]) =
        pair<Product>(first, second);
  }
  sum = quad_sum(sum);
  if (lane % 4 == 0) storage.sum[row][warp] = sum;
  const float rescale = fast_exp2(running.share.row_max - base);
  running.share = {row_max, running.share.sum * rescale};
  const float factors[2] = {__shfl_sync(~0u, rescale, lane % 4 * 8), __shfl_sync(~0u, rescale, lane % 4 * 8 + 4)};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) running.out[i] *= factors[i % 2];
}

// The warp's columns of the first `count` values.
template <class E>
__device__ void add_values(const ClusterStorage<E>& storage, int32_t count, Running& running) {
  using Product = typename E::Product;
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint32_t value = shared_address(storage.values) +
                   piece_at<E>(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);  // 16 keys, two pieces
  uint32_t prob = shared_address(&storage.probs[lane % 8][lane / 8 * 8]);           // 32 keys
  float odd[4] = {};
#pragma unroll 4
  for (int32_t first = 0; first < count; first += 32) {
    uint32_t p[4], v[4];
    ldmatrix_x4(p, prob);
    ldmatrix_x4_trans(v, value);
    mma_m16n8k16<Product>(running.out, v, p[0], p[1]);
    if (first + 16 < count) {
      ldmatrix_x4_trans(v, value + 16 * E::kRowBytes);
      mma_m16n8k16<Product>(odd, v, p[2], p[3]);
    }
    prob += 32 * sizeof(Product);
    value += 32 * E::kRowBytes;
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) running.out[i] += odd[i];
}

// --- the cluster's results

constexpr int32_t kSendBytes = 8;

template <class E>
__device__ int32_t bytes_sent(const ClusterDecode& d, int32_t rows) {
  const int32_t columns = E::kDim >> d.cluster_shift, pairs = (rows + 1) / 2;
  return (columns * pairs + rows) * kSendBytes << d.cluster_shift;
}

// To each block of the cluster its columns, and the shares of all rows. All sums of probabilities are in shared memory.
template <class E>
__device__ void send_results(const ClusterDecode& d, ClusterStorage<E>& storage, int32_t rank, int32_t rows,
                             const Running& running) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t columns_shift = std::countr_zero(static_cast<uint32_t>(E::kDim)) - d.cluster_shift;
  const uint32_t barrier = shared_address(&storage.all_sent);
  if (warp < E::kDim / 16 && lane % 4 * 2 < rows) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t column = warp * 16 + i * 8 + lane / 4, owner = column >> columns_shift;
      const int32_t at = (rank << columns_shift) + column - (owner << columns_shift);
      send(address_in(owner, shared_address(storage.parts + at * kRows + lane % 4 * 2)), running.out[i * 2],
           running.out[i * 2 + 1], address_in(owner, barrier));
    }
  }
  const int32_t block = warp * 4 + lane % 4, row = lane / 4;
  if (block < 1 << d.cluster_shift && row < rows)
    send(address_in(block, shared_address(&storage.shares[rank][row])), running.share.row_max, running.share.sum,
         address_in(block, barrier));
}

// Each value by a thread or, of large clusters, by four, which have every fourth block.
template <class E, bool kSeveral, int32_t kLanes>
__device__ void write_results(const ClusterDecode& d, const ClusterStorage<E>& storage, const RowTile<kSeveral>& tile,
                              int32_t rank) {
  const AttendArgs& args = d.args;
  const int32_t columns_shift = std::countr_zero(static_cast<uint32_t>(E::kDim)) - d.cluster_shift;
  const int32_t blocks = 1 << d.cluster_shift, lane = threadIdx.x % kLanes;
  for (int32_t i = threadIdx.x / kLanes; i < tile.count << columns_shift; i += kClusterThreads / kLanes) {
    const int32_t row = i >> columns_shift, in_block = i - (row << columns_shift);
    Share shares[kMostClusterBlocks / 4];
    float parts[kMostClusterBlocks / 4], row_max = -INFINITY, out = 0, sum = 0;
#pragma unroll
    for (int32_t j = 0; j < kMostClusterBlocks / 4; ++j) {  // in the place of blocks that are not there, another again
      const int32_t block = j * kLanes + lane, read = min(block, blocks - 1);
      shares[j] = storage.shares[read][row];
      parts[j] = storage.parts[((read << columns_shift) + in_block) * kRows + row];
      if (block >= blocks) shares[j].row_max = -INFINITY;
      row_max = fmaxf(row_max, shares[j].row_max);
    }
    const uint32_t together = kLanes == 4 ? 0xfu << (threadIdx.x % kWarp & ~3u) : 0;
#pragma unroll
    for (int32_t step = 1; step < kLanes; step *= 2) row_max = fmaxf(row_max, __shfl_xor_sync(together, row_max, step));
    const float base = row_max == -INFINITY ? 0 : row_max;
#pragma unroll
    for (int32_t j = 0; j < kMostClusterBlocks / 4; ++j) {
      const float share = fast_exp2(shares[j].row_max - base);
      out = __fmaf_rn(parts[j], share, out);
      sum = __fmaf_rn(shares[j].sum, share, sum);
    }
#pragma unroll
    for (int32_t step = 1; step < kLanes; step *= 2) {
      out += __shfl_xor_sync(together, out, step);
      sum += __shfl_xor_sync(together, sum, step);
    }
    if (lane != 0) continue;
    const int32_t head = tile.head_of(d, row), column = (rank << columns_shift) + in_block;
    const int32_t query = tile.first_query + tile.query_of(d, row);
    const float factor = factor_of(row_max * kLn2, sum, args.sinks ? args.sinks[head] : -INFINITY, args.kv.value_scale);
    store(args.out.type, args.out.data, query * args.out.row_stride + head * E::kDim + column, out * factor);
    if (column == 0) write_lse(args, query, head, row_max * kLn2, sum);
  }
}

// Rows behind those of all sequences, which nobody has as queries: dealt out to the tiles.
template <class E>
__device__ void clear_padding(const ClusterDecode& d, int32_t cluster, int32_t rank) {
  const AttendArgs& args = d.args;
  const int32_t kv_heads = args.kv.kv_heads, unit = cluster / kv_heads, kv_head = cluster - unit * kv_heads;
  const int32_t units = (static_cast<int32_t>(gridDim.x) >> d.cluster_shift) / kv_heads;
  const int32_t columns = E::kDim >> d.cluster_shift,
                live_rows = read_early(args.keys.cu_q + read_early(args.keys.live));
  for (int32_t row = live_rows + unit; row < args.q.rows; row += units)
    for (int32_t i = threadIdx.x; i < d.group * columns; i += kClusterThreads) {
      const int32_t head = kv_head * d.group + i / columns, column = rank * columns + i % columns;
      store(args.out.type, args.out.data, row * args.out.row_stride + head * E::kDim + column, 0.0f);
      if (args.lse && column == 0) args.lse[head * args.q.rows + row] = -INFINITY;
    }
}

// --- the kernel

template <class E, bool kSeveral>
__global__ void __launch_bounds__(kClusterThreads, 2) decode_cluster_kernel(const __grid_constant__ ClusterDecode d) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& storage = *reinterpret_cast<ClusterStorage<E>*>(memory);
  if (threadIdx.x == 0) {
    init_barrier(&storage.all_sent, 1);
    arrive_expect_tx(&storage.all_sent, bytes_sent<E>(d, kSeveral ? kRows : d.group));
  }
  cluster_arrive();
  if (!d.args.keys_are_settled) griddep_wait();

  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t rank = block & ((1 << d.cluster_shift) - 1), cluster = block >> d.cluster_shift;
  const RowTile<kSeveral> tile = row_tile_of<kSeveral>(d, cluster);
  if (kSeveral && tile.count <= 0) {
    griddep_wait();
    griddep_launch_dependents();
    clear_padding<E>(d, cluster, rank);
    return cluster_wait();
  }
  const Stretch stretch = stretch_of(d, tile, rank);
  const RoundLoader<E> loader(d, stretch, tile.kv_head, storage.values);
  Keys<E> keys;
  // What may be read of the first round.
  const int32_t old_end = d.keys_are_old ? min(stretch.end, stretch.newest) : 0;
  const int32_t newest = stretch.newest - loader.first_key(stretch.first);
  int32_t slot = 0;
  const bool has_keys = loader.warps_keys(stretch.first, stretch.end) > 0;
  const bool begins_early = loader.warps_keys(stretch.first, old_end) > 0;
  if (has_keys) slot = loader.look_up(stretch.first, stretch.end);
  if (begins_early) {
    loader.load_keys(slot, keys);
    loader.template load_values<kSeveral>(slot, newest);
  }
  wait_and_launch_dependents();
  ClusterQueries<E> q;
  load_queries<E>(d, tile, q);
  if (!begins_early && has_keys) {
    loader.load_keys(slot, keys);
    loader.template load_values<kSeveral>(slot, kNoneLeftOut);
  } else if (begins_early && old_end < stretch.end && newest < kKeysOfWarp) {
    if constexpr (kSeveral)
      loader.load_rest(slot, newest, keys);
    else
      loader.load_one(slot, newest, keys);
  }

  Running running;
  for (int32_t round = stretch.first; round < stretch.end; round += kRoundKeys) {
    const int32_t next = round + kRoundKeys, count = loader.warps_keys(round, stretch.end);
    const bool has_next = loader.warps_keys(next, stretch.end) > 0;
    KeyScores scores;
    if (has_next) slot = loader.look_up(next, stretch.end);
    if (count > 0) scores_of<E>(d, q, keys, scores);
    if (count < kKeysOfWarp) hide_from(count, scores);
    if (kSeveral && d.args.keys.causal) hide_unseen(d, tile, stretch, loader.first_key(round), scores);
    if (has_next) loader.load_keys(slot, keys);
    softmax<E, kSeveral>(scores, storage, running);
    cp_async_wait_all();
    __syncthreads();
    running.share.sum += sum_of(storage.sum[threadIdx.x % kWarp / 4]);
    if (threadIdx.x / kWarp < E::kDim / 16) add_values<E>(storage, min(stretch.end - round, kRoundKeys), running);
    if (next < stretch.end) __syncthreads();
    if (has_next) loader.template load_values<kSeveral>(slot, kNoneLeftOut);
  }
  cluster_wait();
  send_results<E>(d, storage, rank, tile.sent(d), running);
  wait(&storage.all_sent, 0);
  if (d.cluster_shift > 2)
    write_results<E, kSeveral, 4>(d, storage, tile, rank);
  else
    write_results<E, kSeveral, 1>(d, storage, tile, rank);
  if constexpr (kSeveral) clear_padding<E>(d, cluster, rank);
}

template <class E>
void launch(const ClusterDecode& d, const GpuChoice& choice, cudaStream_t stream) {
  const bool has_several = d.args.keys.most_queries != 1;
  launch_clusters(has_several ? decode_cluster_kernel<E, true> : decode_cluster_kernel<E, false>, d, choice,
                  kClusterThreads, sizeof(ClusterStorage<E>), stream);
}

template <class Stored>
void launch_at_dim(const ClusterDecode& d, const GpuChoice& choice, cudaStream_t stream) {
  if (d.args.kv.key_dim == 64)
    launch<ClusterElements<Stored, 64>>(d, choice, stream);
  else
    launch<ClusterElements<Stored, 128>>(d, choice, stream);
}

}  // namespace

void decode_cluster(const AttendArgs& args, const GpuChoice& choice, Exec& exec) {
  const ClusterDecode d = cluster_decode(args, choice);
  const cudaStream_t stream = stream_of(exec);
  if (args.kv.type == Dtype::bf16)
    launch_at_dim<__nv_bfloat16>(d, choice, stream);
  else
    launch_at_dim<__half>(d, choice, stream);
}

}  // namespace quire::attn::cuda
