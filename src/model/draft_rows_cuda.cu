#include <cuda_runtime.h>

#include <cfloat>
#include <climits>

#include "base/check.h"
#include "base/cuda_call.h"
#include "base/cuda_launch.cuh"
#include "model/draft_rows.h"

namespace quire::model::cuda {
namespace {

using quire::cuda::griddep_launch_dependents;
using quire::cuda::griddep_wait;
using quire::cuda::launch_after;
using quire::cuda::stream_of;

constexpr int32_t kWarp = 32;

// By all threads of a block.
__device__ void copy_row(const float* from, float* to, int64_t dim) {
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) to[i] = __ldcg(from + i);
}

// --- the walk

constexpr int32_t kWalkThreads = 256;

template <class T>
constexpr int32_t kPieces = sizeof(T) / sizeof(int4);

// One thread a piece: whatever several ask for comes over the bus several times.
template <class T>
__device__ void fetch(const T* pinned, T& to, int32_t first_thread) {
  const int32_t piece = static_cast<int32_t>(threadIdx.x) - first_thread;
  if (piece < 0 || piece >= kPieces<T>) return;
  reinterpret_cast<int4*>(&to)[piece] = __ldcv(reinterpret_cast<const int4*>(pinned) + piece);
}

__device__ TokenSlot slot_at(const kv::TableView& table, RequestRow row, int32_t position) {
  const int32_t tokens = table.page_size.tokens();
  const PageId* const pages = table.pages + row.value * table.stride;
  return {__ldcg(&pages[position / tokens].value) * tokens + position % tokens};
}

struct Walked {
  int32_t accepted;  // drafts that came
  int32_t tokens;    // that were drawn up to the first that is no draft
  int32_t newest;    // of these; 0, which is some token, where there is none
};

// By every thread for itself. Draws behind a stop id count as well: its request ends with this step, and of the slots
// that others may come to share each has the token that it has without them.
__device__ Walked walk_through(const WalkArgs& a, const WalkedShare& share) {
  if (share.drawn < 0) return {.accepted = 0, .tokens = 0, .newest = 0};
  const int32_t* const drawn = a.drawn + share.drawn;
  const int32_t* const drafts = a.ids + share.first_row + share.text_end - share.position;
  int32_t accepted = 0;
#pragma unroll 4
  for (int32_t i = 0; i < share.drafts; ++i) {
    const int32_t token = __ldcg(drawn + i), draft = __ldcg(drafts + i);
    accepted += accepted == i && token == draft;
  }
  const int32_t last = __ldcg(drawn + accepted);
  return {.accepted = accepted, .tokens = accepted + (last >= 0), .newest = max(last, 0)};
}

// A block has a share.
__global__ void __launch_bounds__(kWalkThreads) walk_kernel(const __grid_constant__ WalkArgs a) {
  __shared__ WalkedStep step;
  __shared__ WalkedShare share;
  const int32_t b = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  fetch(a.shares + b, share, 0);
  fetch(a.step, step, kPieces<WalkedShare>);
  griddep_wait();
  griddep_launch_dependents();
  __syncthreads();
  if (b == 0 && thread == 0) {
    *a.live = step.live;
    *a.passing = step.passing;
    *a.query_rows = step.rows;
    *a.number = step.number;
  }
  if (b >= step.live) return;
  const Walked walked = walk_through(a, share);
  const int32_t draws = share.drawn >= 0, known_end = share.text_end + walked.accepted;
  const int32_t committed = share.text_end - draws + walked.tokens;  // tokens in pages after the step
  const int32_t end = min(max(committed + draws, share.begin + 1), share.most_end);
  if (thread == 0) {
    a.rows[b] = share.row;
    a.lengths[b] = TokenCount{end};
    a.wanted_rows[b] = share.first_slot + end - 1 - share.begin;
    a.kept_rows[b] = committed > share.position ? share.first_row + committed - 1 - share.position : -1;
  }
  for (int32_t slot = share.begin + thread; slot < share.most_end; slot += kWalkThreads) {
    const int32_t i = share.first_slot + slot - share.begin, row = share.first_row + slot - share.position;
    a.input_ids[i] = slot < known_end ? __ldcg(a.ids + row) : walked.newest;
    a.positions[i] = slot;
    a.slots[i] = slot_at(a.table, share.row, slot);
    a.state_rows[i] = slot == share.position ? -1 - share.state_before : row - 1;
  }
}

// --- rows that enter and rows that are kept

constexpr int32_t kRowThreads = 192;

__global__ void __launch_bounds__(kRowThreads) enter_kernel(const __grid_constant__ EnterStatesArgs a) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  if (row >= __ldcg(a.live_rows)) return;
  const int32_t from = __ldcg(a.state_rows + row);
  copy_row(from >= 0 ? a.features.row(from) : a.kept.row(-1 - from), a.out.row(row), a.out.dim);
}

constexpr int32_t kKeepBlocks = 132;

__global__ void __launch_bounds__(kRowThreads) keep_kernel(const __grid_constant__ KeepFeaturesArgs a) {
  griddep_wait();
  griddep_launch_dependents();
  const int32_t tokens = a.page_size.tokens(), rows = __ldcg(a.slot_count), live = __ldcg(a.live);
  for (int32_t i = blockIdx.x; i < rows + live; i += gridDim.x) {
    if (i < rows) {
      const int32_t slot = __ldcg(&a.slots[i].value);
      if (slot % tokens != tokens - 1) continue;
      copy_row(a.features.row(i), a.kept.row(a.first_page + slot / tokens), a.kept.dim);
    } else if (const int32_t from = __ldcg(a.kept_rows + i - rows); from >= 0) {
      copy_row(a.features.row(from), a.kept.row(__ldcg(&a.rows[i - rows].value)), a.kept.dim);
    }
  }
}

__global__ void __launch_bounds__(kRowThreads) take_kernel(const __grid_constant__ TakeRowsArgs a) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  if (row >= __ldcg(a.live)) return;
  const int64_t from = __ldcg(a.wanted + row);
  copy_row(a.x.row(from), a.x_out.row(row), a.x_out.dim);
  const auto* const q = reinterpret_cast<const uint4*>(a.q + from * a.q_bytes);
  auto* const to = reinterpret_cast<uint4*>(a.q_out + row * a.q_bytes);
  for (int64_t i = threadIdx.x; i < a.q_bytes / int64_t{sizeof(uint4)}; i += blockDim.x) to[i] = __ldcg(q + i);
}

constexpr int32_t kLayOutThreads = 256;

__global__ void __launch_bounds__(kLayOutThreads) lay_out_kernel(const __grid_constant__ LayOutArgs a) {
  griddep_wait();
  griddep_launch_dependents();
  const int32_t i = static_cast<int32_t>(blockIdx.x * kLayOutThreads + threadIdx.x), all = a.passes * a.captured;
  if (i == 0) *a.all_rows = all;
  if (i >= all) return;
  const int32_t b = i % a.captured;
  int32_t position = 0;
  TokenSlot slot{0};
  if (b < __ldcg(a.live)) {
    position = __ldcg(&a.lengths[b].value) + i / a.captured;
    slot = slot_at(a.table, {__ldcg(&a.rows[b].value)}, position);
  }
  a.positions[i] = position;
  a.slots[i] = slot;
}

// --- the likeliest token

constexpr int32_t kPickThreads = 1024, kPickWarps = kPickThreads / kWarp;

struct Best {
  float logit;
  int32_t id;  // the lowest of equals
};

__device__ Best better(const Best& a, const Best& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id) ? a : b;
}

__device__ Best best_of_warp(Best best) {
  for (int32_t half = kWarp / 2; half > 0; half /= 2)
    best = better(best, {__shfl_xor_sync(~0u, best.logit, half), __shfl_xor_sync(~0u, best.id, half)});
  return best;
}

__device__ float sum_of_warp(float sum) {
  for (int32_t half = kWarp / 2; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
  return sum;
}

template <class Visit>
__device__ void for_each_logit(const PickArgs& a, int64_t row, Visit visit) {
  const float* const logits = a.logits.row(row);
  const auto count = static_cast<int32_t>(a.logits.dim);
  const bool fours = count % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % sizeof(float4) == 0;
  if (!fours) {
    for (int32_t i = threadIdx.x; i < count; i += kPickThreads) visit(i, __ldcg(logits + i));
    return;
  }
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < count / 4; i += kPickThreads) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(logits) + i);
    visit(4 * i, four.x);
    visit(4 * i + 1, four.y);
    visit(4 * i + 2, four.z);
    visit(4 * i + 3, four.w);
  }
}

__device__ void say(PickedDraft* to, int32_t token, float hit, uint32_t number) {
  const auto put = [number](void* word, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(uint64_t{number} << 32 | value) : "memory");
  };
  put(&to->token, static_cast<uint32_t>(token));
  put(&to->hit, __float_as_uint(hit));
}

// A block has a row. Its logits are read twice, the second time from the caches.
__global__ void __launch_bounds__(kPickThreads) pick_kernel(const __grid_constant__ PickArgs a) {
  __shared__ Best bests[kPickWarps];
  __shared__ float sums[kPickWarps];
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  if (row >= __ldcg(a.live)) return;
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  copy_row(a.states.row(row), a.states_out.row(row), a.states.dim);
  Best best{-INFINITY, INT_MAX};
  bool sound = true;
  for_each_logit(a, row, [&](int32_t id, float logit) {
    sound &= logit <= FLT_MAX;  // false for NaN too
    best = better(best, {logit, id});
  });
  best = best_of_warp(best);
  if (lane == 0) bests[warp] = best;
  sound = __syncthreads_and(sound);
  best = best_of_warp(bests[lane]);
  float sum = 0;
  for_each_logit(a, row, [&](int32_t, float logit) { sum += __expf(logit - best.logit); });
  sum = sum_of_warp(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = sum_of_warp(sums[lane]);
  if (lane != 0) return;
  const bool says = sound && best.logit > -INFINITY;
  const int32_t token = __ldcg(a.token_ids + (says ? best.id : 0));
  a.tokens[row] = token;
  say(a.picked + row, token, says ? 1 / sum : 0, __ldcg(a.number));
}
static_assert(kPickWarps == kWarp, "the last sums are those of one warp");

template <class Args>
void launch_rows(void (*kernel)(Args), const Args& args, int64_t rows, int32_t threads, const char* name, Exec& exec) {
  if (rows == 0) return;
  launch_after(kernel, dim3(static_cast<uint32_t>(rows)), threads, 0, stream_of(exec), name, args);
}

}  // namespace

void walk(const WalkArgs& args, Exec& exec) {
  launch_rows(walk_kernel, args, args.captured, kWalkThreads, "walk", exec);
}

void enter_states(const EnterStatesArgs& args, Exec& exec) {
  launch_rows(enter_kernel, args, args.out.rows, kRowThreads, "enter_states", exec);
}

void keep_features(const KeepFeaturesArgs& args, Exec& exec) {
  launch_rows(keep_kernel, args, kKeepBlocks, kRowThreads, "keep_features", exec);
}

void take_rows(const TakeRowsArgs& args, Exec& exec) {
  check(args.q_bytes % sizeof(uint4) == 0, "queries of ", args.q_bytes, " bytes are not taken");
  launch_rows(take_kernel, args, args.x_out.rows, kRowThreads, "take_rows", exec);
}

void lay_out(const LayOutArgs& args, Exec& exec) {
  const int32_t blocks = (args.passes * args.captured + kLayOutThreads - 1) / kLayOutThreads;
  launch_rows(lay_out_kernel, args, blocks, kLayOutThreads, "lay_out", exec);
}

void pick(const PickArgs& args, Exec& exec) {
  launch_rows(pick_kernel, args, args.logits.rows, kPickThreads, "pick", exec);
}

}  // namespace quire::model::cuda
