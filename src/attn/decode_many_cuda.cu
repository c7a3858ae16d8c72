// One query of each of many sequences, heads of 64 or 128, contexts that are not long: there are as many (sequence, kv
// head) pairs as multiprocessors or more, so nobody's keys need be split over blocks, and what counts is that no warp
// waits for another at the end of every short sequence.
//
// A team of 1, 2, 4, 8 or 16 warps has a pair alone, as many warps as the pairs leave. Each of its warps takes every
// team-th tile of 16 keys, which come by cp.async into stages of its own; against it go the heads of the group
// (decode_tile_cuda.cuh). A warp alone writes its results from registers; a team's meet in shared memory.
//
// Keys that are older than the step are loaded while the kernel before ends, where the caller says that they are
// settled.
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/decode_quads_cuda.cuh"
#include "attn/decode_tile_cuda.cuh"
#include "attn/gpu_sizes.h"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda {
namespace {

constexpr int32_t kManyStages = ManySizes::kStages;
template <class E>
constexpr int32_t kManyWarps = ManySizes::warps(E::kDim);
template <class E>
constexpr int32_t kManyThreads = kManyWarps<E>* kWarp;

struct DecodeMany {
  AttendArgs args;
  int32_t group;
  int32_t team_shift;              // log2 of its warps
  int32_t key_bytes, value_bytes;  // from one slot to the next
  bool keys_are_old;               // but for those of this step's queries: the kernel before wrote none of them
};

// A sequence's keys for one kv head.
struct Pair {
  const PageId* pages;
  int32_t length;  // 0: it has no row, or no keys
  int32_t row, kv_head;
};

__device__ Pair pair_at(const DecodeMany& d, int32_t index) {
  const KeyView& keys = d.args.keys;
  const int32_t kv_heads = d.args.kv.kv_heads, b = index / kv_heads;
  const int32_t row = read_early(keys.cu_q + b), end = read_early(keys.cu_q + b + 1);
  return {.pages = table_place(keys, b).in(keys),
          .length = row < end ? read_early(keys.lengths + b) : 0,
          .row = row,
          .kv_head = index - b * kv_heads};
}

// --- loading

// A warp's tiles of a pair: every team-th, from its own on.
template <class E>
class TileLoader {
 public:
  __device__ TileLoader(const DecodeMany& d, const Pair& pair, int32_t member, std::byte* stages)
      : d_(d),
        pair_(pair),
        member_(member),
        stages_(shared_address(stages)),
        keys_(d.args.kv.keys + pair.kv_head * E::kRowBytes),
        values_(d.args.kv.values + pair.kv_head * E::kRowBytes) {
    const int32_t tiles = (pair.length + E::kKeys - 1) / E::kKeys;
    count_ = (tiles - member + (1 << d.team_shift) - 1) >> d.team_shift;
    slots_[0] = look_up(0);
    slots_[1] = look_up(1);
  }

  __device__ int32_t count() const { return count_; }
  __device__ int32_t first_key(int32_t tile) const { return (member_ + (tile << d_.team_shift)) * E::kKeys; }
  __device__ uint32_t stage(int32_t tile) const { return stages_ + tile % kManyStages * E::kStageBytes; }

  // Whether there are stages to be filled for the first time; then those of tiles whose keys were there before the
  // step.
  __device__ bool is_filling() const { return begun_ < kManyStages; }
  __device__ bool next_is_settled() const {
    return begun_ >= count_ || first_key(begun_) + E::kKeys <= pair_.length - 1;
  }

  // Begins to load the next tile, if there is one; a group of copies in any case: groups are counted.
  __device__ void load_next() {
    if (begun_ < count_) {
      load(begun_);
      if (begun_ % kTilesOfLookUp == kTilesOfLookUp - 1) {
        slots_[0] = slots_[1];
        slots_[1] = look_up(begun_ / kTilesOfLookUp + 2);
      }
    }
    ++begun_;
    cp_async_commit();
  }

 private:
  static constexpr int32_t kTilesOfLookUp = kWarp / E::kKeys;

  // Slots of the keys of so many tiles at once, two tiles or more before they are needed.
  __device__ int32_t look_up(int32_t index) const {
    const int32_t lane = threadIdx.x % kWarp;
    const int32_t key = first_key(index * kTilesOfLookUp + lane / E::kKeys) + lane % E::kKeys;
    if (key >= pair_.length) return -1;
    const int32_t shift = d_.args.keys.page_size.shift();
    return slot_in_page(read_early(&pair_.pages[key >> shift].value), shift, key);
  }

  __device__ void load(int32_t tile) const {
    constexpr int32_t kRowsAtOnce = kWarp / E::kPieces;
    const int32_t lane = threadIdx.x % kWarp, row = lane / E::kPieces, piece = lane % E::kPieces;
    const uint32_t place = stage(tile) + piece_at<E>(row, piece);
    const uint64_t policy = evict_first_policy();
#pragma unroll
    for (int32_t i = 0; i < E::kKeys; i += kRowsAtOnce) {
      const int32_t at = __shfl_sync(~0u, slots_[0], tile % kTilesOfLookUp * E::kKeys + row + i);
      const auto from = static_cast<uint32_t>(max(at, 0));
      const uint32_t to = piece_from<E>(place, i, 0);
      cp_async_by_policy(to, address_of(keys_ + piece * 16, from, static_cast<uint32_t>(d_.key_bytes)), at, policy);
      cp_async_by_policy(to + E::kKeys * E::kRowBytes,
                         address_of(values_ + piece * 16, from, static_cast<uint32_t>(d_.value_bytes)), at, policy);
    }
  }

  const DecodeMany& d_;
  const Pair& pair_;
  int32_t member_, count_, begun_ = 0;
  uint32_t stages_;
  const std::byte *keys_, *values_;
  int32_t slots_[2];  // of this lane's key in the tiles to come
};

// --- a warp's share

template <class E>
__device__ void load_queries(const DecodeMany& d, const Pair& pair, Queries<E>& q) {
  const ConstHeadRows& rows = d.args.q;
  const int32_t row = static_cast<int32_t>(threadIdx.x) % kWarp / 4;
  const bool exists = row < d.group;
  const int32_t head = pair.kv_head * d.group + (exists ? row : 0);
  q.scale[0] = d.args.scale * d.args.kv.key_scale * kLog2e;
  load_words<E>(
      reinterpret_cast<const uint32_t*>(rows.data + (int64_t{pair.row} * rows.row_stride + head * E::kDim) * 2), exists,
      0, q);
}

template <class E>
__device__ Sums<E> fold_tiles(const DecodeMany& d, const Pair& pair, const Queries<E>& q, TileLoader<E>& loader) {
  Sums<E> sums;
  for (int32_t tile = 0; tile < loader.count(); ++tile) {
    cp_async_wait<kManyStages - 1>();
    __syncwarp();
    const uint32_t keys = loader.stage(tile);
    const int32_t first_key = loader.first_key(tile);
    const auto mask = [&](Scores<E>& scores) {
      if (first_key + E::kKeys <= pair.length) return;
      const int32_t lanes_key = first_key + static_cast<int32_t>(threadIdx.x) % 4 * 2;
      for_each_score<E>(scores, 0, [&](float& score, int32_t key) {
        if (lanes_key + key >= pair.length) score = -INFINITY;
      });
    };
    fold_tile<E>(d.args, q, keys, keys + E::kKeys * E::kRowBytes, mask, sums);
    __syncwarp();
    loader.load_next();
  }
  return sums;
}

// --- results

// Of a warp alone.
template <class E>
__device__ void write_sums(const DecodeMany& d, const Pair& pair, const Sums<E>& sums) {
  const int32_t lane = threadIdx.x % kWarp, own = lane / 4;  // whose maximum and sum this lane has
  const int32_t first_head = pair.kv_head * d.group, head = first_head + min(own, d.group - 1);
  const float sum = quad_sum(sums.sum[0]), row_max = __fmul_rn(sums.row_max[0], kLn2);
  const float own_factor =
      factor_of(row_max, sum, d.args.sinks ? d.args.sinks[head] : -INFINITY, d.args.kv.value_scale);
  if (lane % 4 == 0 && own < d.group) write_lse(d.args, pair.row, head, row_max, sum);
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    const int32_t row = lane % 4 * 2 + i;
    const float factor = __shfl_sync(~0u, own_factor, row * 4);
    if (row >= d.group) continue;
    const int64_t at = int64_t{pair.row} * d.args.out.row_stride + (first_head + row) * E::kDim + lane / 4;
#pragma unroll
    for (int32_t c = 0; c < E::kDim / 16; ++c) {
      store(d.args.out.type, d.args.out.data, at + c * 16, sums.out[0][c][i] * factor);
      store(d.args.out.type, d.args.out.data, at + c * 16 + 8, sums.out[0][c][2 + i] * factor);
    }
  }
}

template <class E>
struct Meeting {
  float row_max[kManyWarps<E>][kRowsInTile], sum[kManyWarps<E>][kRowsInTile];
};

// The sums of a team's warps, each in its first stage, are added up in the order of the warps.
template <class E>
__device__ void meet_and_write(const DecodeMany& d, const Pair& pair, const Sums<E>& sums, std::byte* memory,
                               Meeting<E>& meeting) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = 1 << d.team_shift;
  const int32_t team = warp >> d.team_shift, first_warp = team << d.team_shift;
  constexpr int32_t kStagesBytes = kManyStages * E::kStageBytes;
  const auto place = [&](int32_t w) { return reinterpret_cast<float*>(memory + w * kStagesBytes); };
  cp_async_wait<0>();
  __syncwarp();
  const float sum = quad_sum(sums.sum[0]);
  if (lane % 4 == 0) {
    meeting.row_max[warp][lane / 4] = sums.row_max[0];
    meeting.sum[warp][lane / 4] = sum;
  }
  store_rows<E>(sums, 0, d.group, place(warp));
  named_barrier_sync(1 + team, warps * kWarp);
  constexpr int32_t kQuads = E::kDim / 4, kAtOnce = 2;  // a team's warps are even
  const auto quad_of = [&](int32_t w, int32_t row, int32_t quad) -> Quad {
    return {*reinterpret_cast<const float4*>(place(w) + place_of<E>(row, quad * 4)), meeting.row_max[w][row],
            meeting.sum[w][row]};
  };
  for (int32_t i = (warp - first_warp) * kWarp + lane; i < d.group * kQuads; i += warps * kWarp) {
    const int32_t row = i / kQuads, quad = i % kQuads;
    Quad total;
    for (int32_t w = first_warp; w < first_warp + warps; w += kAtOnce)
      fold_quads(total, {quad_of(w, row, quad), quad_of(w + 1, row, quad)});
    write_quad<E::kDim>(d.args, {pair.row, pair.kv_head * d.group + row}, quad, total);
  }
  named_barrier_sync(1 + team, warps * kWarp);  // before the stages are filled again
}

// --- the kernel

// grid: blocks, each with as many neighbouring pairs, which its teams share
template <class E>
__global__ void __launch_bounds__(kManyThreads<E>, 1) decode_many_kernel(const __grid_constant__ DecodeMany d) {
  extern __shared__ __align__(1024) std::byte memory[];
  __shared__ Meeting<E> meeting;
  const int32_t warp = threadIdx.x / kWarp, team = warp >> d.team_shift, member = warp - (team << d.team_shift);
  const int32_t teams = kManyWarps<E> >> d.team_shift;
  if (!d.args.keys_are_settled) griddep_wait();
  const int32_t live = read_early(d.args.keys.live), pairs = live * d.args.kv.kv_heads;
  bool has_waited = false;
  const auto wait_once = [&] {
    if (has_waited) return;
    wait_and_launch_dependents();
    has_waited = true;
  };
  const auto blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
  const int32_t each = (pairs + blocks - 1) / blocks, end = min(pairs, each * (block + 1));
  for (int32_t index = each * block + team; index < end; index += teams) {
    const Pair pair = pair_at(d, index);
    TileLoader<E> loader(d, pair, member, memory + warp * kManyStages * E::kStageBytes);
    if (d.keys_are_old)
      while (loader.is_filling() && loader.next_is_settled()) loader.load_next();
    wait_once();
    while (loader.is_filling()) loader.load_next();
    if (pair.length == 0) continue;  // of the whole team
    Queries<E> q;
    load_queries<E>(d, pair, q);
    const Sums<E> sums = fold_tiles<E>(d, pair, q, loader);
    if (d.team_shift == 0)
      write_sums<E>(d, pair, sums);
    else
      meet_and_write<E>(d, pair, sums, memory, meeting);
  }
  wait_once();
  const KeyView& keys = d.args.keys;
  write_empty_rows(
      d.args, live, [&](int32_t b) { return live > 0 ? read_early(keys.cu_q + b) : 0; },
      [&](int32_t b) { return read_early(keys.lengths + b) == 0; }, threadIdx.x, blockDim.x);
}

template <class E>
void launch(const DecodeMany& d, const GpuChoice& choice, cudaStream_t stream) {
  constexpr int32_t kShared = kManyWarps<E> * kManyStages * E::kStageBytes;
  const auto kernel = decode_many_kernel<E>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "attention needs ",
             kShared, " bytes of shared memory");
  launch_after(kernel, dim3(static_cast<uint32_t>(choice.blocks)), kManyThreads<E>, kShared, stream, "attention", d);
}

template <class Stored>
void launch_for_dim(const DecodeMany& d, const GpuChoice& choice, cudaStream_t stream) {
  if (d.args.kv.key_dim == 64) return launch<Elements<Stored, 64, 1, true>>(d, choice, stream);
  launch<Elements<Stored, 128, 1, true>>(d, choice, stream);
}

}  // namespace

void decode_many(const AttendArgs& args, const GpuChoice& choice, Exec& exec) {
  const DecodeMany d{.args = args,
                     .group = args.q.heads / args.kv.kv_heads,
                     .team_shift = std::countr_zero(static_cast<uint32_t>(choice.team)),
                     .key_bytes = static_cast<int32_t>(args.kv.key_stride * size_of(args.kv.type)),
                     .value_bytes = static_cast<int32_t>(args.kv.value_stride * size_of(args.kv.type)),
                     .keys_are_old = args.keys_are_settled};
  const cudaStream_t stream = stream_of(exec);
  if (args.kv.type == Dtype::bf16)
    launch_for_dim<__nv_bfloat16>(d, choice, stream);
  else
    launch_for_dim<__half>(d, choice, stream);
}

}  // namespace quire::attn::cuda
