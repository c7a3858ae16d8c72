// Many queries of each sequence, bf16 or f16, over keys and values like them or e4m3, on Hopper GPUs: bound by the
// tensor cores, so all that counts is that they never wait, neither for keys nor for the softmax.
//
// A tile is 64 packed rows (query row x head of the group) for each consumer, of one sequence and kv head, against
// kKeys keys at a time, from its last key to its first, so that what must be masked comes first. A block's warpgroups:
//
//   producer    fills a ring of stages with keys and values: pages of kPrefillLeastBox tokens or more by TMA,
//               smaller ones row by row with cp.async (boxes of few rows cost TMA more time than it has), and so those
//               of a tree; e4m3 row by row, and widens it to what is multiplied
//   consumers   two or three, 64 rows each: S = Q K^T of the next keys and O += P V of the last ones are given to the
//               tensor cores together, then the softmax of S is made while O is still being summed. They take turns in
//               giving (ping-pong), so that one's softmax is made during the others' products. What counts is how long
//               a warp takes for it: so it has no maximum where none is needed (stale_softmax()), and all that is not
//               a power of two is done in the time that powers of two take.
//
// A block takes its place, reads what the step says and finds its first tile while the kernel before it in the stream
// ends (see decode_kernel_cuda.cuh); for all else it waits.
//
// The kernel is persistent: a block's tile scheduler takes the next tile from a counter when it has done with one,
// heaviest tiles of a sequence first, and the producer is at the next tile's keys while the consumers write their
// results. Where tiles are few, those that are longer than their share are split over keys (split-KV): each split
// is scheduled as a tile of its own and leaves its sums in the workspace, and the consumer that arrives last merges its
// rows' splits.
#pragma once
#include <cstdint>
#include <type_traits>

#include "attn/prefill_fold_cuda.cuh"
#include "attn/prefill_load_cuda.cuh"
#include "attn/prefill_tile_cuda.cuh"
#include "attn/tensor_map.h"
#include "base/hopper.cuh"

namespace quire::attn::cuda::prefill_kernels {

// The next tile's queries come while this one's results are made and written.
template <class T, class Product, int32_t kKeyDim, int32_t kValueDim, class Memory>
__device__ void consume(const Prefill& p, Memory memory, SharedStorage& storage, int32_t number) {
  Consumer<Memory, T, Product, kKeyDim, kValueDim> consumer(p, memory, storage, number);
  Tiles tiles(storage);
  const Tile* tile = tiles.take();
  if (tile) consumer.load_queries(*tile);
  while (tile) {
    consumer.wait_for_queries(*tile);
    Sums<kValueDim> sums;
    consumer.fold(*tile, sums);
    const Tile* const next = tiles.take();
    if (next) consumer.load_queries(*next);
    if (Memory::kSplits && uniform(tile->num_splits) > 1)
      consumer.write_split(*tile, sums);
    else
      consumer.write(*tile, sums);
    tiles.release();
    tile = next;
  }
}

template <class T, class Stored, int32_t kKeyDim, int32_t kValueDim, bool kSplits>
using LayoutOf = Layout<kKeyDim, kValueDim, !std::is_same_v<T, Stored>, kSplits>;

//   T        queries
//   Stored   keys and values: T, or what has 8 bits
template <class T, class Stored, int32_t kKeyDim, int32_t kValueDim, bool kSplits>
__global__ void __launch_bounds__(LayoutOf<T, Stored, kKeyDim, kValueDim, kSplits>::kThreads, 1)
    prefill_kernel(const __grid_constant__ Prefill p) {
  if (!QUIRE_HOPPER) return;  // and so nothing is made of the rest
  using Memory = LayoutOf<T, Stored, kKeyDim, kValueDim, kSplits>;
  constexpr bool kWidens = !std::is_same_v<T, Stored>;
  using Product = std::conditional_t<kWidens, __half, T>;
  extern __shared__ __align__(1024) std::byte shared[];  // and nothing before it: kernel_from_base()
  const Memory memory;
  SharedStorage& storage = *reinterpret_cast<SharedStorage*>(shared + Memory::kBytes);
  const KeyView& keys = p.args.keys;
  if (!p.args.keys_are_settled) griddep_wait();
  const int32_t live = read_early(keys.live);
  const bool cached = live < kMostCached;
  if (!cached) griddep_wait();  // more are read where they lie
  for (int32_t b = threadIdx.x; cached && b <= live; b += Memory::kThreads)
    storage.first_rows[b] = read_early(keys.cu_q + b);
  if (threadIdx.x == 0) init_barriers<Memory>(storage, p.box > 0);
  __syncthreads();
  const bool splits = kSplits && live < kMostCached / 2;
  int32_t* const plan = storage.first_rows + kMostCached / 2;
  if (splits) plan_splits<Memory>(p, live, storage, plan);
  const Work<Memory> work{p, cached ? storage.first_rows : keys.cu_q, splits ? plan : nullptr, live};
  const int32_t warpgroup = uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == 0) {
    hopper::warpgroup_reg_dealloc<Memory::kProducerRegisters>();
    if constexpr (kWidens) {
      WideningLoader<Memory, kKeyDim, kValueDim> loader(p, memory, storage);
      produce_tiles<Memory::kKeys>(work, storage, loader);
    } else if (p.box == 0) {
      RowLoader<Memory, kKeyDim, kValueDim> loader(p, memory, storage);
      produce_tiles<Memory::kKeys>(work, storage, loader);
    } else if (threadIdx.x < kWarp) {
      const auto produce_boxes = [&]<int32_t kBoxes>() {
        BoxLoader<Memory, kBoxes> loader(p, memory, storage);
        produce_tiles<Memory::kKeys>(work, storage, loader);
      };
      constexpr int32_t kMostBoxes = Memory::kKeys / kPrefillLeastBox;
      if (p.box == Memory::kKeys)
        produce_boxes.template operator()<1>();
      else if (p.box == Memory::kKeys / 2)
        produce_boxes.template operator()<2>();
      else
        produce_boxes.template operator()<kMostBoxes>();
    }
  } else {
    hopper::warpgroup_reg_alloc<Memory::kConsumerRegisters>();
    griddep_wait();
    if (warpgroup == 1)
      write_empty_rows(
          p.args, live, [&](int32_t b) { return live ? work.first_rows[b] : 0; },
          [](int32_t) { return false; },  // of those without keys, tiles
          threadIdx.x % kWarpgroup, kWarpgroup);
    consume<T, Product, kKeyDim, kValueDim>(p, memory, storage, warpgroup - 1);
  }
}

// --- the host's side

template <class T, class Stored, int32_t kKeyDim, int32_t kValueDim, bool kSplits>
void launch_kernel(Prefill p, int32_t blocks, cudaStream_t stream) {
  using Memory = LayoutOf<T, Stored, kKeyDim, kValueDim, kSplits>;
  if (p.box > 0) {
    p.key_boxes = tensor_map(p.args.kv, Rows::keys, p.box);
    p.value_boxes = tensor_map(p.args.kv, Rows::values, p.box);
  }
  if (p.queries_in_boxes) p.query_boxes = tensor_map(p.args.q, p.group, kRowsEach / p.group);
  constexpr size_t kShared = kSharedBytes<Memory>;
  static_assert(kShared <= 227 * 1024);
  static const auto kernel =
      kernel_from_base(prefill_kernel<T, Stored, kKeyDim, kValueDim, kSplits>, kShared, kPrefillSharedBase);
  launch_after(kernel, dim3(static_cast<uint32_t>(blocks)), Memory::kThreads, kShared, stream, "attention", p);
}

template <class T, class Stored, bool kSplits>
void launch_at_dim(const Prefill& p, int32_t blocks, cudaStream_t stream) {
  switch (p.args.kv.key_dim) {
    case 64:
      launch_kernel<T, Stored, 64, 64, kSplits>(p, blocks, stream);
      break;
    case 96:
      launch_kernel<T, Stored, 96, 96, kSplits>(p, blocks, stream);
      break;
    case 128:
      launch_kernel<T, Stored, 128, 128, kSplits>(p, blocks, stream);
      break;
    case 192:
      launch_kernel<T, Stored, 192, 128, kSplits>(p, blocks, stream);
      break;
    default:
      launch_kernel<T, Stored, 256, 256, kSplits>(p, blocks, stream);
  }
}

template <class T, bool kSplits>
void launch(const Prefill& p, int32_t blocks, cudaStream_t stream) {
  if (p.args.kv.type == Dtype::f8e4m3)
    launch_at_dim<T, __nv_fp8_e4m3, kSplits>(p, blocks, stream);
  else
    launch_at_dim<T, T, kSplits>(p, blocks, stream);
}

}  // namespace quire::attn::cuda::prefill_kernels
