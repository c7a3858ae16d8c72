#include <cuda_runtime.h>

#include <cfloat>
#include <climits>

#include "base/check.h"
#include "base/cuda_call.h"
#include "base/cuda_launch.cuh"
#include "model/draft_rows.h"
#include "model/draft_rows_cuda.cuh"

namespace quire::model::cuda {
namespace {

using quire::cuda::griddep_launch_dependents;
using quire::cuda::griddep_wait;
using quire::cuda::launch_after;
using quire::cuda::stream_of;

constexpr int32_t kWarp = 32;

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

struct Walked {
  int32_t accepted;  // drafts that came
  int32_t tokens;    // that were drawn up to the first that is no draft
  int32_t newest;    // of these; 0, which is some token, where there is none
};

// drawn: by the row in which the walk ended.
__device__ Walked walked_to(int32_t accepted, int32_t drawn) {
  return {.accepted = accepted, .tokens = accepted + (drawn >= 0), .newest = max(drawn, 0)};
}

// By every thread for itself. Draws behind a stop id count as well: its request ends with this step, and of the slots
// that others may come to share each has the token that it has without them.
__device__ Walked walk_chain(const WalkArgs& a, const WalkedShare& share) {
  if (share.drawn < 0) return {.accepted = 0, .tokens = 0, .newest = 0};
  const int32_t* const drawn = a.drawn + share.drawn;
  const int32_t* const drafts = a.ids + share.first_row + share.text_end - share.position;
  int32_t accepted = 0;
#pragma unroll 4
  for (int32_t i = 0; i < share.drafts; ++i) {
    const int32_t token = __ldcg(drawn + i), draft = __ldcg(drafts + i);
    accepted += accepted == i && token == draft;
  }
  return walked_to(accepted, __ldcg(drawn + accepted));
}

struct Tree {
  int32_t follows[kMostTreeDrafts];  // of each draft
  int32_t path[1 + kMostTreeDrafts];
  Walked walked;
};

// By the first warp, a lane for two drafts: from the row in which the walk is to the first draft that follows it and
// that it drew.
__device__ void walk_tree(const WalkArgs& a, const WalkedShare& share, Tree& tree) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x);
  const int32_t* const drawn = a.drawn + share.drawn;
  const int32_t* const drafts = a.ids + share.first_row + share.text_end - share.position;
  const auto comes = [&](int32_t i) {
    return i < share.drafts && __ldcg(drafts + i) == __ldcg(drawn + tree.follows[i]);
  };
  const bool first_comes = comes(lane), second_comes = comes(kWarp + lane);
  int32_t at = 0, accepted = 0;
  tree.path[0] = 0;
  for (;;) {
    const uint32_t firsts = __ballot_sync(~0u, first_comes && tree.follows[lane] == at);
    const uint32_t seconds = __ballot_sync(~0u, second_comes && tree.follows[kWarp + lane] == at);
    if ((firsts | seconds) == 0) break;
    at = firsts ? __ffs(static_cast<int32_t>(firsts)) : kWarp + __ffs(static_cast<int32_t>(seconds));
    tree.path[++accepted] = at;
  }
  tree.walked = walked_to(accepted, __ldcg(drawn + at));
}
static_assert(kMostTreeDrafts == 2 * kWarp);

// A block has a share.
__global__ void __launch_bounds__(kWalkThreads) walk_kernel(const __grid_constant__ WalkArgs a) {
  __shared__ WalkedStep step;
  __shared__ WalkedShare share;
  __shared__ Tree tree;
  const int32_t b = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  fetch(a.shares + b, share, 0);
  fetch(a.step, step, kPieces<WalkedShare>);
  __syncthreads();
  const bool is_tree = b < step.live && share.branches;
  if (is_tree && thread < share.drafts) tree.follows[thread] = __ldcv(a.follows + share.drawn + 1 + thread);
  griddep_wait();
  griddep_launch_dependents();
  if (b == 0 && thread == 0) {
    *a.live = step.live;
    *a.passing = step.passing;
    *a.query_rows = step.rows;
    *a.number = step.number;
  }
  if (b >= step.live) return;
  if (is_tree) {
    __syncthreads();
    if (thread < kWarp) walk_tree(a, share, tree);
    __syncthreads();
  }
  const Walked walked = is_tree ? tree.walked : walk_chain(a, share);
  const int32_t draws = share.drawn >= 0, known_end = share.text_end + walked.accepted;
  const int32_t committed = share.text_end - draws + walked.tokens;  // tokens in pages after the step
  const int32_t end = min(max(committed + draws, share.begin + 1), share.most_end);
  const int32_t last_row = share.first_row + share.text_end - 1 - share.position;  // of its text
  const auto row_at = [&](int32_t position) {
    const int32_t ahead = position - share.text_end + 1;
    return last_row + (is_tree && ahead > 0 ? tree.path[min(ahead, walked.accepted)] : ahead);
  };
  if (thread == 0) {
    a.rows[b] = share.row;
    a.lengths[b] = TokenCount{end};
    a.wanted_rows[b] = share.first_slot + end - 1 - share.begin;
    a.kept_rows[b] = committed > share.position ? row_at(committed - 1) : -1;
    a.paths[b] = {.nodes = is_tree ? 1 + walked.accepted : 1, .position = share.text_end - 1, .first_row = last_row};
  }
  if (is_tree && thread <= walked.accepted) a.path_rows[b * (1 + kMostTreeDrafts) + thread] = tree.path[thread];
  for (int32_t slot = share.begin + thread; slot < share.most_end; slot += kWalkThreads) {
    const int32_t i = share.first_slot + slot - share.begin;
    a.input_ids[i] = slot < known_end ? __ldcg(a.ids + row_at(slot)) : walked.newest;
    a.positions[i] = slot;
    a.slots[i] = slot_at(a.table, share.row, slot);
    a.state_rows[i] = slot == share.position ? -1 - share.state_before : row_at(slot - 1);
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
  const int32_t i = static_cast<int32_t>(blockIdx.x * kLayOutThreads + threadIdx.x);
  const int32_t rows = a.captured * a.topk, all = a.passes * rows, live = __ldcg(a.live);
  if (i == 0) {
    *a.all_rows = all;
    *a.pass_rows = live * a.topk;
  }
  if (i >= all) return;
  const int32_t row = i % rows, pass = i / rows, b = row / a.topk;
  int32_t position = 0;
  TokenSlot slot{0};
  if (b < live) {
    position = __ldcg(&a.lengths[b].value) + pass;
    slot = a.topk == 1 ? slot_at(a.table, {__ldcg(&a.rows[b].value)}, position)
                       : TokenSlot{a.first_branch_slot.value + row * a.steps + pass};
  }
  a.positions[i] = position;
  a.slots[i] = slot;
  if (a.topk > 1) a.draft_slots[row * a.steps + pass] = slot;
}

// --- the likeliest tokens

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

struct PickShared {
  Best bests[kPickWarps];
  float sums[kPickWarps];
};

// By all threads of a block, which have it then: the best of those behind `last`. sound: whether all are numbers.
__device__ Best next_best(const PickArgs& a, int64_t row, const Best& last, PickShared& shared, bool& sound) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Best best{-INFINITY, INT_MAX};
  bool is_sound = true;
  for_each_logit(a, row, [&](int32_t id, float logit) {
    is_sound &= logit <= FLT_MAX;  // false for NaN too
    const bool is_behind = logit < last.logit || (logit == last.logit && id > last.id);
    if (is_behind) best = better(best, {logit, id});
  });
  best = best_of_warp(best);
  if (lane == 0) shared.bests[warp] = best;
  sound = __syncthreads_and(is_sound);
  best = best_of_warp(shared.bests[lane]);
  __syncthreads();  // before the next one's
  return best;
}

// exp(logit - best) of all.
__device__ float sum_of_row(const PickArgs& a, int64_t row, const Best& best, PickShared& shared) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float sum = 0;
  for_each_logit(a, row, [&](int32_t, float logit) { sum += __expf(logit - best.logit); });
  sum = sum_of_warp(sum);
  if (lane == 0) shared.sums[warp] = sum;
  __syncthreads();
  return sum_of_warp(shared.sums[lane]);
}

// A block has a row. Its logits are read from memory once, then from the caches.
__global__ void __launch_bounds__(kPickThreads) pick_kernel(const __grid_constant__ PickArgs a) {
  __shared__ PickShared shared;
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  if (row >= __ldcg(a.live)) return;
  if (a.states_out.data)
    for (int32_t branch = 0; branch < a.topk; ++branch)
      copy_row(a.states.row(row), a.states_out.row(row * a.topk + branch), a.states.dim);
  bool sound;
  Best best = next_best(a, row, {INFINITY, -1}, shared, sound);
  const Best first = best;
  const float sum = sum_of_row(a, row, first, shared);
  for (int32_t k = 0; k < a.topk; ++k) {
    bool unused;
    if (k > 0) best = next_best(a, row, best, shared, unused);
    if (threadIdx.x != 0) continue;
    const bool says = sound && best.logit > -INFINITY;
    const int64_t at = row * a.topk + k;
    const int32_t token = __ldcg(a.token_ids + (says ? best.id : 0));
    const float hit = says ? __expf(best.logit - first.logit) / sum : 0;
    a.tokens[at] = token;
    a.hits[at] = hit;
    say(a.picked + at, token, hit, __ldcg(a.number));
  }
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
  const int32_t blocks = (args.passes * args.captured * args.topk + kLayOutThreads - 1) / kLayOutThreads;
  launch_rows(lay_out_kernel, args, blocks, kLayOutThreads, "lay_out", exec);
}

void pick(const PickArgs& args, Exec& exec) {
  launch_rows(pick_kernel, args, args.logits.rows, kPickThreads, "pick", exec);
}

}  // namespace quire::model::cuda
