// One query of each of few sequences, keys of 16 bits: what counts is how long it takes from the queries to the
// results, so everything else is done before the queries are there, and nothing goes through memory on the way.
//
// A cluster of blocks has one sequence and kv head. Each of its blocks has a stretch of the keys by its rank in the
// cluster, kRoundKeys of them at a time:
//
//   keys      a warp has 32 of them, which go through its stage of shared memory into its registers
//   values    of all warps lie in their stages, half of them where the keys were; each warp multiplies 16 columns of
//             them with all probabilities, so that no sums of several warps have to be added up
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

#include "attn/attend_cuda.cuh"
#include "attn/decode_tile_cuda.cuh"
#include "base/hopper.cuh"

namespace quire::attn::cuda {
namespace {

using namespace quire::cuda::hopper;

constexpr int32_t kClusterThreads = 256, kClusterWarps = kClusterThreads / kWarp;
constexpr int32_t kRows = kMostClusterRows;  // query heads of a kv head, those that are not there included
constexpr int32_t kRoundKeys = kClusterRoundKeys, kKeysOfWarp = kRoundKeys / kClusterWarps, kEights = kKeysOfWarp / 8;

struct ClusterDecode {
  AttendArgs args;
  int32_t group;
  int32_t cluster_shift;           // log2 of its blocks
  int32_t key_bytes, value_bytes;  // from one slot to the next
  bool keys_are_old;               // but for those of this step's queries: the kernel before wrote none of them

  __device__ bool loads_much() const { return cluster_shift > 2; }  // so do its blocks together
};

template <class Stored, int32_t kHeadDim>
struct ClusterElements {
  using Product = Stored;
  static constexpr int32_t kDim = kHeadDim, kRowBytes = kDim * 2, kPieces = kRowBytes / 16;
  // A warp's: room for its keys, then for half of its values. The other half comes where the keys were.
  static constexpr int32_t kKeyBytes = kKeysOfWarp * kRowBytes, kStageBytes = kKeyBytes + kKeyBytes / 2;
};

// A block's share of a cluster's results, as it is sent: what it is relative to and its sum of probabilities, for each
// row.
struct Share {
  float row_max, sum;
};

template <class E>
struct ClusterStorage {
  static constexpr int32_t kProbStride = kRoundKeys + 8;  // rows in different banks
  alignas(1024) std::byte stages[kClusterWarps][E::kStageBytes];
  alignas(16) typename E::Product probs[kRows][kProbStride];
  alignas(16) float row_max[kRows][kClusterWarps], sum[kRows][kClusterWarps];  // of each warp's keys
  // What the cluster's blocks sent: [blocks, columns that this one writes, kRows], [blocks, kRows].
  alignas(16) float parts[E::kDim * kRows];
  Share shares[kMostClusterBlocks][kRows];
  Barrier all_sent;
};

// --- what the block has

struct Stretch {
  const PageId* pages;
  int32_t first, end;  // keys
  int32_t newest;      // this step's key, in this stretch or behind it
};

// Lengths and such may be read while the kernel before still runs, which is too early to trust L1.
template <class T>
__device__ T read_early(const T* of_step) {
  return __ldcg(of_step);
}

// All is asked for at once; of what is past the live count nothing is used.
__device__ Stretch stretch_of(const ClusterDecode& d, int32_t b, int32_t rank) {
  const KeyView& keys = d.args.keys;
  const int32_t live = read_early(keys.live), length = read_early(keys.lengths + b);
  const int32_t table_row = keys.rows ? read_early(&keys.rows[b].value) : b;
  const int32_t first_page = keys.first_page ? read_early(keys.first_page + b) : 0;
  if (b >= live) return {};
  const int32_t seen_first = d.args.window >= 0 && keys.causal ? max(0, length - 1 - d.args.window) : 0;
  const int32_t blocks = 1 << d.cluster_shift;
  const int32_t each = ((length - seen_first + blocks - 1 >> d.cluster_shift) + 15) & ~15;
  const int32_t first = seen_first + rank * each;
  return {.pages = keys.pages + table_row * keys.stride + first_page,
          .first = first,
          .end = min(first + each, length),
          .newest = length - 1};
}

// --- loading

// As ldmatrix gives them: word t % 4 of all pieces of key t / 4 of each eight, t being the lane. The words of two
// pieces are a product's operand.
template <class E>
struct Keys {
  uint32_t words[kEights][E::kPieces / 4][4];
};

// A warp's keys and values of one round after the other.
template <class E>
class RoundLoader {
 public:
  __device__ RoundLoader(const ClusterDecode& d, const Stretch& stretch, int32_t kv_head, std::byte* stage)
      : d_(d), stretch_(stretch), head_bytes_(kv_head * E::kRowBytes), stage_(shared_address(stage)) {}

  __device__ int32_t warps_keys(int32_t round, int32_t end) const { return end - round - warp() * kKeysOfWarp; }

  // Of the lane's key of the warp; in place of keys past the end the warp's first is read again. There is one at least.
  __device__ int32_t look_up(int32_t round) const {
    const int32_t first = round + warp() * kKeysOfWarp, key = first + lane() < stretch_.end ? first + lane() : first;
    const int32_t shift = d_.args.keys.page_size.shift();
    return slot_in_page(read_early(&stretch_.pages[key >> shift].value), shift, key);
  }

  // `but`: one of the warp's keys that is left out, or none of them.
  __device__ void load(int32_t slot, int32_t but, Keys<E>& keys) const {
    load_rows<0, kKeysOfWarp>(keys_at(), d_.key_bytes, slot, but, stage_);
    cp_async_commit();
    load_rows<0, kKeysOfWarp / 2>(values_at(), d_.value_bytes, slot, but, stage_ + E::kKeyBytes);
    cp_async_commit();
    cp_async_wait<1>();
    __syncwarp();
    take_keys(keys);
    __syncwarp();
    load_rows<kKeysOfWarp / 2, kKeysOfWarp>(values_at(), d_.value_bytes, slot, but, stage_);
  }

  // All of them; zeros where the warp has none.
  __device__ void load_if(bool has_keys, int32_t slot, Keys<E>& keys) const {
    if (has_keys)
      load(slot, -1, keys);
    else
      keys = {};
  }

  // The one that was left out, of the first round.
  __device__ void load_one(int32_t slot, int32_t which, Keys<E>& keys) const {
    const auto of_one = static_cast<uint32_t>(__shfl_sync(~0u, slot, which));
    const std::byte* const key = address_of(keys_at(), of_one, static_cast<uint32_t>(d_.key_bytes)) + lane() % 4 * 4;
#pragma unroll
    for (int32_t n = 0; n < kEights; ++n) {
      if (n * 8 + lane() / 4 != which) continue;
#pragma unroll
      for (int32_t i = 0; i < E::kPieces; ++i)
        keys.words[n][i / 4][i % 4] = __ldcg(reinterpret_cast<const uint32_t*>(key + i * 16));
    }
    const bool is_first_half = which < kKeysOfWarp / 2;
    const uint32_t to = stage_ + (is_first_half ? E::kKeyBytes : 0);
    if (lane() < E::kPieces)
      cp_async(to + piece_at<E>(which % (kKeysOfWarp / 2), lane()),
               address_of(values_at(), of_one, static_cast<uint32_t>(d_.value_bytes)) + lane() * 16);
  }

 private:
  static constexpr int32_t kRowsAtOnce = kWarp / E::kPieces;
  static __device__ int32_t lane() { return threadIdx.x % kWarp; }
  static __device__ int32_t warp() { return threadIdx.x / kWarp; }
  __device__ const std::byte* keys_at() const { return d_.args.kv.keys + head_bytes_; }
  __device__ const std::byte* values_at() const { return d_.args.kv.values + head_bytes_; }

  template <int32_t kFirst, int32_t kLast>
  __device__ void load_rows(const std::byte* from, int32_t bytes, int32_t slot, int32_t but, uint32_t to) const {
    const uint64_t policy = evict_first_policy();
    const int32_t row = lane() / E::kPieces, piece = lane() % E::kPieces;
    const uint32_t place = to + piece_at<E>(row, piece);
    from += piece * 16;
#pragma unroll
    for (int32_t i = 0; i < kLast - kFirst; i += kRowsAtOnce) {
      const int32_t of_row = __shfl_sync(~0u, slot, kFirst + i + row);
      const std::byte* const at = address_of(from, static_cast<uint32_t>(of_row), static_cast<uint32_t>(bytes));
      if (kFirst + i + row != but) cp_async_by_policy(piece_from<E>(place, i, 0), at, 0, policy);
    }
  }

  __device__ void take_keys(Keys<E>& keys) const {
    const uint32_t place = stage_ + piece_at<E>(lane() % 8, lane() / 8);
#pragma unroll
    for (int32_t n = 0; n < kEights; ++n)
#pragma unroll
      for (int32_t i = 0; i < E::kPieces / 4; ++i) ldmatrix_x4(keys.words[n][i], piece_from<E>(place, n * 8, i * 4));
  }

  const ClusterDecode& d_;
  const Stretch& stretch_;
  int32_t head_bytes_;
  uint32_t stage_;
};

// As the left operand: row t / 4 of the queries, and in the place of the row 8 below it the same one with the next 16
// dims.
template <class E>
struct ClusterQueries {
  uint32_t words[E::kPieces / 4][4];
};

// Where this lane's lie: in the place of rows that are not there, the last one's.
template <class E>
__device__ const uint32_t* queries_at(const ClusterDecode& d, int32_t b, int32_t kv_head) {
  const int32_t lane = threadIdx.x % kWarp, head = kv_head * d.group + min(lane / 4, d.group - 1);
  const ConstHeadRows& rows = d.args.q;
  return reinterpret_cast<const uint32_t*>(rows.data + (b * rows.row_stride + head * E::kDim) * 2) + lane % 4;
}

template <class E>
__device__ void load_queries(const uint32_t* from, ClusterQueries<E>& q) {
#pragma unroll
  for (int32_t i = 0; i < E::kPieces; ++i) q.words[i / 4][i % 2 * 2 + i / 2 % 2] = __ldcg(from + i * 4);
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
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int32_t i = 0; i < E::kPieces / 4; ++i) {
      const uint32_t(&words)[4] = keys.words[n][i];
      mma_m16n8k16<Product>(even, q.words[i], words[0], words[1]);
      mma_m16n8k16<Product>(odd, q.words[i], words[2], words[3]);
    }
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      scores[n][i] = (even[i] + odd[2 + i]) * scale;
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
template <class E>
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
#pragma unroll
  for (int32_t n = 0; n < kEights; ++n) {
    const float first = fast_exp2(scores[n][0] - row_max), second = fast_exp2(scores[n][1] - row_max);
    sum += first + second;
    *reinterpret_cast<uint32_t*>(&storage.probs[row][warp * kKeysOfWarp + n * 8 + lane % 4 * 2]) =
        pair<Product>(first, second);
  }
  sum = quad_sum(sum);
  if (lane % 4 == 0) storage.sum[row][warp] = sum;
  const float rescale = fast_exp2(running.share.row_max - row_max);
  running.share = {row_max, running.share.sum * rescale};
  const float factors[2] = {__shfl_sync(~0u, rescale, lane % 4 * 8), __shfl_sync(~0u, rescale, lane % 4 * 8 + 4)};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) running.out[i] *= factors[i % 2];
}

// The warp's columns of the first `count` values. Those of several products are fetched before the first of them; past
// the count, whose probabilities are zeros, the first values stand in for what may be anything.
template <class E>
__device__ void add_values(const ClusterStorage<E>& storage, int32_t count, Running& running) {
  using Product = typename E::Product;
  constexpr int32_t kAtOnce = 4, kKeysAtOnce = 16 * kAtOnce;
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint32_t values =
      shared_address(storage.stages) + piece_at<E>(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  const uint32_t probs = shared_address(&storage.probs[lane % 8][lane / 8 * 8]);
  float out[kAtOnce][4] = {};
  for (int32_t first = 0; first < count; first += kKeysAtOnce) {
    uint32_t p[kAtOnce / 2][4], v[kAtOnce][4];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce / 2; ++i) ldmatrix_x4(p[i], probs + (first + i * 32) * 2);
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const int32_t key = first + i * 16 < count ? first + i * 16 : 0;
      ldmatrix_x4_trans(v[i], values + key / kKeysOfWarp * E::kStageBytes + (key % kKeysOfWarp ? 0 : E::kKeyBytes));
    }
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i)
      mma_m16n8k16<Product>(out[i], v[i], p[i / 2][i % 2 * 2], p[i / 2][i % 2 * 2 + 1]);
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) running.out[i] += (out[0][i] + out[1][i]) + (out[2][i] + out[3][i]);
}

// --- the cluster's results

__device__ void cluster_arrive() {
#if QUIRE_HOPPER
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ void cluster_wait() {
#if QUIRE_HOPPER
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ uint32_t address_in([[maybe_unused]] uint32_t block, uint32_t here) {
  uint32_t there = here;
#if QUIRE_HOPPER
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
#endif
  return there;
}
// Both addresses are another block's, whose barrier counts the bytes.
__device__ void send([[maybe_unused]] uint32_t to, [[maybe_unused]] float first, [[maybe_unused]] float second,
                     [[maybe_unused]] uint32_t barrier) {
#if QUIRE_HOPPER
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(first), "f"(second), "r"(barrier)
               : "memory");
#endif
}

constexpr int32_t kSendBytes = 8;

template <class E>
__device__ int32_t bytes_sent(const ClusterDecode& d) {
  const int32_t columns = E::kDim >> d.cluster_shift, pairs = (d.group + 1) / 2;
  return (columns * pairs + d.group) * kSendBytes << d.cluster_shift;
}

// To each block of the cluster its columns, and the shares of all rows. All sums of probabilities are in shared memory.
template <class E>
__device__ void send_results(const ClusterDecode& d, ClusterStorage<E>& storage, int32_t rank, const Running& running) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t columns_shift = std::countr_zero(static_cast<uint32_t>(E::kDim)) - d.cluster_shift;
  const uint32_t barrier = shared_address(&storage.all_sent);
  if (warp < E::kDim / 16 && lane % 4 * 2 < d.group) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t column = warp * 16 + i * 8 + lane / 4, owner = column >> columns_shift;
      const int32_t at = (rank << columns_shift) + column - (owner << columns_shift);
      send(address_in(owner, shared_address(storage.parts + at * kRows + lane % 4 * 2)), running.out[i * 2],
           running.out[i * 2 + 1], address_in(owner, barrier));
    }
  }
  const int32_t block = warp * 4 + lane % 4, row = lane / 4;
  if (block < 1 << d.cluster_shift && row < d.group)
    send(address_in(block, shared_address(&storage.shares[rank][row])), running.share.row_max, running.share.sum,
         address_in(block, barrier));
}

// Each value by a thread or, of large clusters, by four, which have every fourth block.
template <class E, int32_t kLanes>
__device__ void write_results(const ClusterDecode& d, const ClusterStorage<E>& storage, int32_t b, int32_t kv_head,
                              int32_t rank) {
  const AttendArgs& args = d.args;
  const int32_t columns_shift = std::countr_zero(static_cast<uint32_t>(E::kDim)) - d.cluster_shift;
  const int32_t blocks = 1 << d.cluster_shift, lane = threadIdx.x % kLanes;
  for (int32_t i = threadIdx.x / kLanes; i < d.group << columns_shift; i += kClusterThreads / kLanes) {
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
    const int32_t head = kv_head * d.group + row, column = (rank << columns_shift) + in_block;
    const float factor = factor_of(row_max * kLn2, sum, args.sinks ? args.sinks[head] : -INFINITY, args.kv.value_scale);
    store(args.out.type, args.out.data, b * args.out.row_stride + head * E::kDim + column, out * factor);
    if (args.lse && column == 0)
      args.lse[head * args.q.rows + b] = row_max == -INFINITY ? -INFINITY : row_max * kLn2 + logf(sum);
  }
}

// --- the kernel

template <class E>
__global__ void __launch_bounds__(kClusterThreads, 2) decode_cluster_kernel(const __grid_constant__ ClusterDecode d) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& storage = *reinterpret_cast<ClusterStorage<E>*>(memory);
  if (threadIdx.x == 0) {
    init_barrier(&storage.all_sent, 1);
    arrive_expect_tx(&storage.all_sent, bytes_sent<E>(d));
  }
  cluster_arrive();
  if (!d.args.keys_are_settled) griddep_wait();

  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t rank = block & ((1 << d.cluster_shift) - 1), cluster = block >> d.cluster_shift;
  const int32_t b = cluster / d.args.kv.kv_heads, kv_head = cluster - b * d.args.kv.kv_heads;
  const Stretch stretch = stretch_of(d, b, rank);
  const RoundLoader<E> loader(d, stretch, kv_head, storage.stages[threadIdx.x / kWarp]);
  const uint32_t* const queries = queries_at<E>(d, b, kv_head);
  Keys<E> keys;
  ClusterQueries<E> q;
  int32_t slot = 0;
  // Of the warp's first keys, whether any are there and some are old, and which is this step's.
  const bool has_keys = loader.warps_keys(stretch.first, stretch.end) > 0;
  const int32_t newest = stretch.newest - stretch.first - static_cast<int32_t>(threadIdx.x) / kWarp * kKeysOfWarp;
  const bool begins_early = d.keys_are_old && has_keys && newest > 0;
  if (has_keys) slot = loader.look_up(stretch.first);
  if (begins_early) loader.load(slot, newest, keys);
  griddep_wait();
  load_queries<E>(queries, q);
  // Where many blocks load, the next layer's copies would be before the queries in every queue.
  if (!d.loads_much()) griddep_launch_dependents();
  if (begins_early && newest < kKeysOfWarp) loader.load_one(slot, newest, keys);
  if (!begins_early) loader.load_if(has_keys, slot, keys);

  Running running;
  for (int32_t round = stretch.first; round < stretch.end;) {
    const int32_t count = loader.warps_keys(round, stretch.end), left = stretch.end - round;
    KeyScores scores;
    scores_of<E>(d, q, keys, scores);
    if (count < kKeysOfWarp) hide_from(count, scores);
    if (d.loads_much()) griddep_launch_dependents();  // the queries are there
    softmax<E>(scores, storage, running);
    cp_async_wait_all();
    __syncthreads();
    running.share.sum += sum_of(storage.sum[threadIdx.x % kWarp / 4]);
    if (threadIdx.x / kWarp < E::kDim / 16) add_values<E>(storage, min(left, kRoundKeys), running);
    round += kRoundKeys;
    if (round >= stretch.end) break;
    __syncthreads();
    const bool has_more = loader.warps_keys(round, stretch.end) > 0;
    if (has_more) slot = loader.look_up(round);
    loader.load_if(has_more, slot, keys);
  }
  if (d.loads_much()) griddep_launch_dependents();  // also where there are no keys
  cluster_wait();
  send_results<E>(d, storage, rank, running);
  wait(&storage.all_sent, 0);
  if (d.loads_much())
    write_results<E, 4>(d, storage, b, kv_head, rank);
  else
    write_results<E, 1>(d, storage, b, kv_head, rank);
}

template <class E>
void launch(const ClusterDecode& d, const GpuChoice& choice, cudaStream_t stream) {
  const auto kernel = decode_cluster_kernel<E>;
  constexpr size_t kShared = sizeof(ClusterStorage<E>);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)),
             "attention needs ", kShared, " bytes of shared memory");
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      "attention needs room for two blocks");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             "attention needs clusters of 16 blocks");
  cudaLaunchAttribute attributes[2] = {starts_early(reinterpret_cast<const void*>(kernel), "attention"), {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {.x = static_cast<uint32_t>(choice.cluster), .y = 1, .z = 1};
  const cudaLaunchConfig_t config = {.gridDim = dim3(static_cast<uint32_t>(choice.blocks)),
                                     .blockDim = dim3(kClusterThreads),
                                     .dynamicSmemBytes = kShared,
                                     .stream = stream,
                                     .attrs = attributes,
                                     .numAttrs = 2};
  check_cuda(cudaLaunchKernelEx(&config, kernel, d), "attention was not launched");
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
  const ClusterDecode d{.args = args,
                        .group = args.q.heads / args.kv.kv_heads,
                        .cluster_shift = std::countr_zero(static_cast<uint32_t>(choice.cluster)),
                        .key_bytes = static_cast<int32_t>(args.kv.key_stride * size_of(args.kv.type)),
                        .value_bytes = static_cast<int32_t>(args.kv.value_stride * size_of(args.kv.type)),
                        .keys_are_old = args.keys_are_settled && args.keys.set != Set::encoder};
  const cudaStream_t stream = stream_of(exec);
  if (args.kv.type == Dtype::bf16)
    launch_at_dim<__nv_bfloat16>(d, choice, stream);
  else
    launch_at_dim<__half>(d, choice, stream);
}

}  // namespace quire::attn::cuda
