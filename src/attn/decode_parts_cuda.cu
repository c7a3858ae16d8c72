// One query of one sequence where the one reduction is asked for (decode_cut.h), keys of 16 bits: the arithmetic of
// decode_kernel_cuda.cuh with a fixed cut, so the same bits, with the latency taken out as in decode_cluster_cuda.cu.
//
// A cluster of blocks has one kv head. Each of its blocks takes whole parts, kLeastPart keys at a time: of these each
// warp has two tiles, whose keys, and the values of the first, lie in shared memory, and the values of the second in
// registers, until the first keys' place is free. So all that is loaded was asked for before the queries are there,
// and another block has room beside this one: that of the next layer.
//
// What the parts add up to goes to the block that writes the columns, and is added up there in the order of the parts.
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/cluster_cuda.cuh"
#include "attn/decode_cut.h"
#include "attn/decode_quads_cuda.cuh"
#include "attn/decode_tile_cuda.cuh"
#include "base/hopper.cuh"

namespace quire::attn::cuda {
namespace {

using namespace quire::cuda::hopper;

constexpr int32_t kRows = kMostClusterRows;  // query heads of a kv head, those that are not there included
constexpr int32_t kFirstLongPart = part_index(16 * kLeastPart);  // those before have kLeastPart keys
constexpr int32_t kMostParts = 2 * kMostClusterBlocks;

template <class Stored, int32_t kDim>
using PartElements = Elements<Stored, kDim, 1, false>;

// What a part adds up to for a row, beside its columns.
struct Share {
  float row_max, sum;
};

template <class E>
struct PartsStorage {
  static constexpr int32_t kTileBytes = E::kKeys * E::kRowBytes, kQuads = E::kDim / 4;
  static_assert(2 * E::kWarps * E::kKeys == kLeastPart, "a part is two tiles for each warp");
  static_assert(kTileBytes == kRows * E::kDim * static_cast<int32_t>(sizeof(float)), "a tile has room for sums");

  alignas(1024) std::byte keys[2][E::kWarps][kTileBytes];  // in place of the first: the values of the second tile
  std::byte values[E::kWarps][kTileBytes];                 // of the first tile; where the warps meet, their sums
  float row_max[E::kWarps][kRows], sum[E::kWarps][kRows];
  // What the cluster's blocks sent: of each part the quads that this block writes, and the rows' shares.
  alignas(16) float4 quads[kMostParts * kRows * kQuads / kMostClusterBlocks];
  Share shares[kMostParts][kRows];
  Barrier all_sent;

  __device__ float* sums(int32_t warp) { return reinterpret_cast<float*>(values[warp]); }
};

// --- what the sequence is, and which parts the block takes

struct Parts {
  const PageId* pages;
  int32_t seen_first, length;  // keys [seen_first, length) are seen
  int32_t first, count;        // parts of the sequence
};

// Without a live sequence nothing more is read: nobody wrote it.
__device__ Parts parts_of_sequence(const ClusterDecode& d) {
  const KeyView& keys = d.args.keys;
  if (read_early(keys.live) == 0) return {};
  const int32_t length = read_early(keys.lengths);
  const TablePlace place = table_place(keys, 0);
  if (length == 0) return {};
  const int32_t seen_first = first_seen_by_last(d.args, length);
  const int32_t first = part_index(seen_first);
  return {.pages = place.in(keys),
          .seen_first = seen_first,
          .length = length,
          .first = first,
          .count = part_index(length - 1) - first + 1};
}

// The block's: part, part + step, ... before end. Long ones have a block of their own.
struct OwnParts {
  int32_t part, step, end;
};
__device__ OwnParts parts_of_block(const Parts& all, int32_t rank, int32_t blocks) {
  const int32_t end = all.first + all.count, first_long = min(max(all.first, kFirstLongPart), end);
  const int32_t longs = end - first_long;
  if (longs >= blocks || longs == all.count) return {all.first + rank, blocks, end};
  if (rank < longs) return {first_long + rank, blocks, first_long + rank + 1};
  return {all.first + rank - longs, blocks - longs, first_long};
}

// --- loading

// A warp's 32 keys of kLeastPart: 16 of the first half, 16 of the second. Lane t has the slot of the t-th of them.
template <class E>
class PartLoader {
 public:
  static constexpr int32_t kRowsAtOnce = kWarp / E::kPieces, kPiecesEach = E::kKeys / kRowsAtOnce;

  __device__ PartLoader(const ClusterDecode& d, const Parts& parts, int32_t kv_head, PartsStorage<E>& storage)
      : d_(d),
        parts_(parts),
        keys_(d.args.kv.keys + kv_head * E::kRowBytes + lane() % E::kPieces * 16),
        values_(d.args.kv.values + kv_head * E::kRowBytes + lane() % E::kPieces * 16),
        policy_(evict_first_policy()),
        first_keys_(shared_address(storage.keys[0][warp()])),
        second_keys_(shared_address(storage.keys[1][warp()])),
        first_values_(shared_address(storage.values[warp()])) {}

  // The first key of the warp's tile in each half.
  static __device__ int32_t tile_at(int32_t first, int32_t half) {
    return first + half * (kLeastPart / 2) + warp() * E::kKeys;
  }

  // Of the keys from `first` on; -1: nobody sees it.
  __device__ void look_up(int32_t first) {
    const int32_t key = tile_at(first, lane() / E::kKeys) + lane() % E::kKeys, shift = d_.args.keys.page_size.shift();
    slot_ = -1;
    if (key >= parts_.seen_first && key < parts_.length)
      slot_ = slot_in_page(read_early(&parts_.pages[key >> shift].value), shift, key);
  }

  // Of the warp's 32 keys those whose bits are set.
  __device__ void load(uint32_t which) {
    const auto key_bytes = static_cast<uint32_t>(d_.key_bytes), value_bytes = static_cast<uint32_t>(d_.value_bytes);
    const int32_t line = lane() / E::kPieces;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half)
#pragma unroll
      for (int32_t i = 0; i < kPiecesEach; ++i) {
        const int32_t row = i * kRowsAtOnce + line, slot = __shfl_sync(~0u, slot_, half * E::kKeys + row);
        if (which >> (half * E::kKeys + row) & 1)
          cp_async_by_policy((half ? second_keys_ : first_keys_) + piece_at<E>(row, lane() % E::kPieces),
                             address_of(keys_, max(slot, 0), key_bytes), slot, policy_);
      }
#pragma unroll
    for (int32_t half = 0; half < 2; ++half)
#pragma unroll
      for (int32_t i = 0; i < kPiecesEach; ++i) {
        const int32_t row = i * kRowsAtOnce + line, slot = __shfl_sync(~0u, slot_, half * E::kKeys + row);
        if (!(which >> (half * E::kKeys + row) & 1)) continue;
        const std::byte* const from = address_of(values_, max(slot, 0), value_bytes);
        if (half == 0)
          cp_async_by_policy(first_values_ + piece_at<E>(row, lane() % E::kPieces), from, slot, policy_);
        else
          second_values_[i] = slot >= 0 ? load_piece(from, policy_) : uint4{};
      }
  }

  __device__ void wait() const {
    cp_async_wait_all();
    __syncwarp();
  }

  // Nobody reads the first keys any more. Returns where the second tile's values lie.
  __device__ uint32_t put_second_values() const {
    __syncwarp();
#pragma unroll
    for (int32_t i = 0; i < kPiecesEach; ++i) {
      const uint32_t to = first_keys_ + piece_at<E>(i * kRowsAtOnce + lane() / E::kPieces, lane() % E::kPieces);
      const uint4& piece = second_values_[i];
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(piece.x), "r"(piece.y), "r"(piece.z),
                   "r"(piece.w)
                   : "memory");
    }
    __syncwarp();
    return first_keys_;
  }

  __device__ uint32_t keys(int32_t half) const { return half ? second_keys_ : first_keys_; }
  __device__ uint32_t first_values() const { return first_values_; }

 private:
  static __device__ int32_t lane() { return threadIdx.x % kWarp; }
  static __device__ int32_t warp() { return threadIdx.x / kWarp; }

  const ClusterDecode& d_;
  const Parts& parts_;
  const std::byte *keys_, *values_;
  uint64_t policy_;
  uint32_t first_keys_, second_keys_, first_values_;
  int32_t slot_;
  uint4 second_values_[kPiecesEach];
};

template <class E>
__device__ void load_queries(const ClusterDecode& d, int32_t kv_head, Queries<E>& q) {
  const int32_t row = static_cast<int32_t>(threadIdx.x) % kWarp / 4, head = kv_head * d.group + min(row, d.group - 1);
  const auto* const words = reinterpret_cast<const uint32_t*>(d.args.q.data + int64_t{head} * E::kDim * 2);
  q.scale[0] = d.args.scale * d.args.kv.key_scale * kLog2e;
  load_words<E>(words, row < d.group, 0, q);
}

// --- products

// Both tiles' scores first: the place of the first keys is then free.
template <class E>
__device__ void fold_tiles(const ClusterDecode& d, const Parts& parts, int32_t first, const Queries<E>& q,
                           const PartLoader<E>& loader, Sums<E>& sums) {
  Scores<E> scores[2] = {};
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) mma_qk<E>(q, loader.keys(half), scores[half]);
  const uint32_t values[2] = {loader.first_values(), loader.put_second_values()};
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t tile = loader.tile_at(first, half), key = tile + static_cast<int32_t>(threadIdx.x) % 4 * 2;
    fold_scores<E>(
        d.args, q, scores[half], values[half],
        [&](Scores<E>& of_tile) {
          if (tile >= parts.seen_first && tile + E::kKeys <= parts.length) return;
          for_each_score<E>(of_tile, 0, [&](float& score, int32_t i) {
            if (key + i < parts.seen_first || key + i >= parts.length) score = -INFINITY;
          });
        },
        sums);
  }
}

// --- the cluster's results

// Fours of columns that each block of the cluster writes, of every row.
template <class E>
__device__ int32_t own_quads_shift(const ClusterDecode& d) {
  return std::countr_zero(static_cast<uint32_t>(PartsStorage<E>::kQuads)) - d.cluster_shift;
}

// Into the place of the warp's own values.
template <class E>
__device__ void leave_sums(const ClusterDecode& d, const Sums<E>& sums, PartsStorage<E>& storage) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float sum = quad_sum(sums.sum[0]);
  if (lane % 4 == 0) {
    storage.row_max[warp][lane / 4] = sums.row_max[0];
    storage.sum[warp][lane / 4] = sum;
  }
  store_rows<E>(sums, 0, d.group, storage.sums(warp));
}

// The warps' sums are added up and sent to the block that writes them. number: of the part among the sequence's.
template <class E>
__device__ void send_part(const ClusterDecode& d, PartsStorage<E>& storage, int32_t number) {
  constexpr int32_t kQuads = PartsStorage<E>::kQuads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = thread / kQuads, quad = thread % kQuads, shift = own_quads_shift<E>(d);
  if (row >= d.group) return;
  Quad quads[E::kWarps], part;
#pragma unroll
  for (int32_t w = 0; w < E::kWarps; ++w)
    quads[w] = {*reinterpret_cast<const float4*>(storage.sums(w) + place_of<E>(row, quad * 4)), storage.row_max[w][row],
                storage.sum[w][row]};
  fold_quads(part, quads);
  const int32_t owner = quad >> shift, in_owner = quad - (owner << shift);
  const uint32_t barrier = address_in(owner, shared_address(&storage.all_sent));
  const int32_t at = (number * d.group + row << shift) + in_owner;
  send(address_in(owner, shared_address(storage.quads + at)), part.out, barrier);
  if (in_owner == 0)
    send(address_in(owner, shared_address(&storage.shares[number][row])), part.row_max, part.sum, barrier);
}

template <class E>
__device__ int32_t bytes_sent(const ClusterDecode& d, int32_t parts) {
  const int32_t of_part = d.group * static_cast<int32_t>(sizeof(float4)) << own_quads_shift<E>(d);
  return parts * (of_part + d.group * static_cast<int32_t>(sizeof(Share)));
}

// From the first part to the last.
template <class E>
__device__ void write_results(const ClusterDecode& d, const PartsStorage<E>& storage, int32_t parts, int32_t kv_head,
                              int32_t rank) {
  constexpr int32_t kAtOnce = 8;
  const int32_t shift = own_quads_shift<E>(d), row = static_cast<int32_t>(threadIdx.x) >> shift;
  const int32_t in_owner = static_cast<int32_t>(threadIdx.x) - (row << shift);
  if (row >= d.group) return;
  Quad total;
#pragma unroll 1
  for (int32_t first = 0; first < parts; first += kAtOnce) {
    Quad quads[kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const int32_t part = min(first + i, parts - 1);
      const Share share = storage.shares[part][row];
      quads[i] = {storage.quads[(part * d.group + row << shift) + in_owner],
                  first + i < parts ? share.row_max : -INFINITY, share.sum};
    }
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) fold_quads(total, {quads[i]});
  }
  write_quad<E::kDim>(d.args, {0, kv_head * d.group + row}, (rank << shift) + in_owner, total);
}

// --- the kernel

template <class E>
__global__ void __launch_bounds__(E::kThreads, 2) decode_parts_kernel(const __grid_constant__ ClusterDecode d) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& storage = *reinterpret_cast<PartsStorage<E>*>(memory);
  if (threadIdx.x == 0) init_barrier(&storage.all_sent, 1);
  cluster_arrive();
  if (!d.args.keys_are_settled) griddep_wait();

  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t rank = block & (d.blocks() - 1), kv_head = block >> d.cluster_shift;
  const Parts parts = parts_of_sequence(d);
  OwnParts own = parts_of_block(parts, rank, d.blocks());
  PartLoader<E> loader(d, parts, kv_head, storage);
  const bool has_parts = own.part < own.end;
  const int32_t begin = begin_of_part(own.part);
  // This step's key is the last one; all others may be read now.
  const int32_t in_half = parts.length - 1 - begin - static_cast<int32_t>(threadIdx.x) / kWarp * E::kKeys;
  uint32_t newest = 0;
  if (in_half >= 0 && in_half < E::kKeys) newest = 1u << in_half;
  const int32_t in_second = in_half - kLeastPart / 2;
  if (in_second >= 0 && in_second < E::kKeys) newest = 1u << (E::kKeys + in_second);
  const uint32_t late = d.keys_are_old ? newest : ~0u;
  if (has_parts) {
    loader.look_up(begin);
    loader.load(~late);
  }
  if (threadIdx.x == 0) arrive_expect_tx(&storage.all_sent, bytes_sent<E>(d, parts.count));
  wait_and_launch_dependents();
  Queries<E> q;
  load_queries<E>(d, kv_head, q);
  if (has_parts && late) loader.load(late);
  cluster_wait();  // all blocks have begun
  for (bool is_first = true; own.part < own.end; own.part += own.step) {
    Sums<E> sums;
    const int32_t end = min(begin_of_part(own.part + 1), parts.length);
    for (int32_t first = begin_of_part(own.part); first < end; first += kLeastPart) {
      if (!is_first) {
        __syncwarp();  // everybody has done with what lies there
        loader.look_up(first);
        loader.load(~0u);
      }
      is_first = false;
      loader.wait();
      fold_tiles<E>(d, parts, first, q, loader, sums);
    }
    __syncwarp();
    leave_sums<E>(d, sums, storage);
    __syncthreads();
    send_part<E>(d, storage, own.part - parts.first);
    if (own.part + own.step < own.end) __syncthreads();  // until the sums were read
  }
  wait(&storage.all_sent, 0);
  write_results<E>(d, storage, parts.count, kv_head, rank);
}

template <class E>
void launch(const ClusterDecode& d, const GpuChoice& choice, cudaStream_t stream) {
  launch_clusters(decode_parts_kernel<E>, d, choice, E::kThreads, sizeof(PartsStorage<E>), stream);
}

template <class Stored>
void launch_at_dim(const ClusterDecode& d, const GpuChoice& choice, cudaStream_t stream) {
  if (d.args.kv.key_dim == 64)
    launch<PartElements<Stored, 64>>(d, choice, stream);
  else
    launch<PartElements<Stored, 128>>(d, choice, stream);
}

}  // namespace

void decode_parts(const AttendArgs& args, const GpuChoice& choice, Exec& exec) {
  const ClusterDecode d = cluster_decode(args, choice);
  const cudaStream_t stream = stream_of(exec);
  if (args.kv.type == Dtype::bf16)
    launch_at_dim<__nv_bfloat16>(d, choice, stream);
  else
    launch_at_dim<__half>(d, choice, stream);
}

}  // namespace quire::attn::cuda
