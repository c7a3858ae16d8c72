// Sampling on Hopper: a cluster of blocks a row, whose logits lie in their shared memory after one reading. The record
// of a row says which of the parts below it goes through; rows do not know of each other.
#include <cuda_runtime.h>

#include <cfloat>
#include <climits>

#include "base/check.h"
#include "base/cuda_call.h"
#include "base/cuda_launch.cuh"
#include "ops/sample_cut_cuda.cuh"
#include "ops/sample_record.h"

namespace quire::ops::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr int32_t kRecordPieces = sizeof(SampleRecord) / sizeof(int4);
constexpr int32_t kMaskWords = kSampleWarps * kGroup / 32;  // of a slice, for each group

__device__ SampleRecord& shared_record() {
  __shared__ SampleRecord record;
  return record;
}

// One row, by all threads of its cluster.
class RowSampler {
 public:
  __device__ explicit RowSampler(const SampleArgs& args)
      : a_(args), slice_(groups_for(args.vocabulary, Slice::blocks())), cuts_(slice_) {}

  // What the host wrote, before the logits are there: the cluster's first block asks for it, and all have it after the
  // first barrier.
  __device__ void ask_for_record() {
    if (Slice::rank() != 0 || Slice::thread() >= kRecordPieces) return;
    const uint32_t slot = __ldcg(a_.number) % a_.slots;
    piece_ = __ldcg(reinterpret_cast<const int4*>(a_.records + int64_t{slot} * a_.most_rows + row()) + Slice::thread());
  }

  __device__ void run() {
    const SampleRecord& r = shared_record();
    const Slice::Likeliest raw = load();
    if (r.task == SampleTask::skip) {
      if (Slice::rank() != 0 || Slice::thread() != 0) return;
      a_.token_of_step[row()] = -1;
      if (row() == 0) say(a_, __ldcg(a_.number), -1, SampleStatus::fine, 0, 0);
      return;
    }
    if (!raw.sound || raw.none())
      return finish_in_first(-1, raw.sound ? SampleStatus::no_logits : SampleStatus::broken_logits);
    if (r.top_count >= 0) add_logprobs(logit_of(raw.token.key));
    if (r.task == SampleTask::score) return finish_in_first(r.token, SampleStatus::fine);
    const Slice::Likeliest best = adjusts() ? adjust() : raw;
    if (best.none()) return finish_in_first(-1, SampleStatus::no_token);
    if (r.per_logit == 0) return finish_in_first(best.token.id, SampleStatus::fine);
    draw({.top = logit_of(best.token.key), .per_logit = r.per_logit});
  }

  // By one thread.
  __device__ __noinline__ void finish(int32_t token, SampleStatus status) {
    const SampleRecord& r = shared_record();
    const auto fine = status == SampleStatus::fine;
    const float logprob = fine && r.top_count >= 0 ? logprob_of(token) : 0;
    const bool draws = fine && r.task == SampleTask::draw;
    a_.token_of_step[row()] = draws ? token : -1;
    if (draws) {
      a_.token_of_row[r.request_row] = token;
      if (r.penalty_slot >= 0) ++a_.counts[int64_t{r.penalty_slot} * a_.vocabulary + token];
    }
    if (r.top_count > 0 || r.ids_count > 0) __threadfence_system();  // the lists first
    say(a_, r.number, token, status, logprob, top_);
  }
  // Also for a step of nobody, by its first row.
  __device__ static void say(const SampleArgs& args, uint32_t number, int32_t token, SampleStatus status, float logprob,
                             int32_t top) {
    const uint64_t now = device_clock(), elapsed = now - __ldcg(&args.clock->begun);
    SampleOutcome* const to = args.outcomes + int64_t{number % args.slots} * args.most_rows + blockIdx.y;
    put(&to->token, static_cast<uint32_t>(token), number);
    put(&to->logprob, __float_as_uint(logprob), number);
    put(&to->status, static_cast<uint32_t>(status) + 4 * static_cast<uint32_t>(top), number);
    if (blockIdx.y == 0) put(&to->idle, clamped(__ldcg(&args.clock->idle)), number);
    put(&to->nanoseconds, clamped(elapsed), number);
    atomicMax(&args.clock->ended, now);
  }

 private:
  __device__ __noinline__ void finish_in_first(int32_t token, SampleStatus status) {
    if (Slice::rank() != 0) return;
    __syncthreads();  // logprobs that other threads of this block have written
    if (Slice::thread() == 0) finish(token, status);
  }

  __device__ static uint32_t clamped(uint64_t x) { return static_cast<uint32_t>(x < UINT32_MAX ? x : UINT32_MAX); }

  __device__ static void put(NumberedWord* to, uint32_t value, uint32_t number) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(uint64_t{number} << 32 | value) : "memory");
  }

  __device__ static int32_t row() { return static_cast<int32_t>(blockIdx.y); }
  __device__ uint32_t* mask() const {  // [kMaskWords, groups] of the slice, behind it
    return reinterpret_cast<uint32_t*>(slice_logits() + slice_.size());
  }
  __device__ const float* raw() const { return a_.logits + row() * a_.stride; }
  __device__ float raw_logit(int32_t id) const { return __ldcg(raw() + id); }

  __device__ void read_mask() {
    const int32_t words = (a_.vocabulary + 31) / 32, first = slice_.first_id() / 32;
    const uint32_t* const from = shared_record().mask + first;
    for (int32_t i = Slice::thread(); i < kMaskWords * slice_.groups(); i += kSampleThreads)
      mask()[i] = first + i < words ? __ldcg(from + i) : 0;
    __syncthreads();
  }

  // --- the logits as they come

  // All at once, so that their way is gone once.
  __device__ void copy_logits() const {
    const bool aligned = reinterpret_cast<uintptr_t>(raw()) % 16 == 0;
#pragma unroll 4
    for (int32_t group = 0; group < slice_.groups(); ++group) {
      const int32_t at = slice_.place(Slice::warp(), group), id = slice_.first_id() + at;
      if (aligned && id + 4 <= a_.vocabulary) {
        copy_16(&Slice::four(at), raw() + id);
        continue;
      }
#pragma unroll 1
      for (int32_t i = 0; i < 4; ++i)
        slice_logits()[at + i] = id + i < a_.vocabulary ? __ldcg(raw() + id + i) : -INFINITY;
    }
    copies_wait();
  }

  __device__ Slice::Likeliest load() {
    copy_logits();
    float best = -INFINITY;
    int32_t best_id = INT_MAX;
    bool sound = true;
    slice_.for_each([&](int32_t id, float logit) {
      sound &= logit <= FLT_MAX;  // false for NaN too
      if (logit > best) {
        best = logit;
        best_id = id;
      }
    });
    cluster_wait();  // all blocks are there to be told
    if (Slice::rank() == 0 && Slice::thread() < kRecordPieces)
      for (int32_t rank = 0; rank < Slice::blocks(); ++rank)
        reinterpret_cast<int4*>(at_rank(&shared_record(), rank))[Slice::thread()] = piece_;
    return slice_.likeliest(best, best_id, sound);
  }

  // --- bias, penalties and mask

  __device__ bool adjusts() const {
    const SampleRecord& r = shared_record();
    return r.bias_count > 0 || r.penalty_slot >= 0 || r.mask != nullptr;
  }

  __device__ void add_bias() {
    const LogitBias* const list = shared_record().bias;
    const int32_t count = shared_record().bias_count;
    for (int32_t i = Slice::thread(); i < count; i += kSampleThreads) {
      const int32_t token = __ldcg(&list[i].token), at = token - slice_.first_id();
      if (at < 0 || at >= slice_.size() || (i > 0 && __ldcg(&list[i - 1].token) == token)) continue;
      float logit = slice_logits()[at];
      for (int32_t k = i; k < count && __ldcg(&list[k].token) == token; ++k) logit += __ldcg(&list[k].bias);
      slice_logits()[at] = logit;
    }
    __syncthreads();
  }

  __device__ __noinline__ static float penalised(float logit, uint32_t seen) {
    const SampleRecord& r = shared_record();
    if (seen == 0) return logit;
    logit = logit > 0 ? fminf(logit / r.repetition_penalty, FLT_MAX) : logit * r.repetition_penalty;
    const uint32_t generated = seen & ~kInPrompt;
    if (generated == 0) return logit;
    return logit - (r.frequency_penalty * static_cast<float>(generated) + r.presence_penalty);
  }

  // Of four tokens of the vocabulary, and those behind it.
  __device__ uint4 seen_four(int32_t id) const {
    const uint32_t* const from = a_.counts + int64_t{shared_record().penalty_slot} * a_.vocabulary + id;
    if (id + 4 <= a_.vocabulary && reinterpret_cast<uintptr_t>(from) % 16 == 0)
      return __ldcg(reinterpret_cast<const uint4*>(from));
    uint32_t seen[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) seen[i] = id + i < a_.vocabulary ? __ldcg(from + i) : 0;
    return {seen[0], seen[1], seen[2], seen[3]};
  }

  __device__ void penalise() {
    constexpr int32_t kAtOnce = 4;
#pragma unroll 1
    for (int32_t first = 0; first < slice_.groups(); first += kAtOnce) {
      uint4 seen[kAtOnce];
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i)
        if (first + i < slice_.groups())
          seen[i] = seen_four(slice_.first_id() + slice_.place(Slice::warp(), first + i));
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (first + i >= slice_.groups() || (seen[i].x | seen[i].y | seen[i].z | seen[i].w) == 0) continue;
        float4& four = Slice::four(slice_.place(Slice::warp(), first + i));
        four = {penalised(four.x, seen[i].x), penalised(four.y, seen[i].y), penalised(four.z, seen[i].z),
                penalised(four.w, seen[i].w)};
      }
    }
  }

  __device__ __noinline__ Slice::Likeliest adjust() {
    const SampleRecord& r = shared_record();
    if (r.bias_count > 0) add_bias();
    if (r.penalty_slot >= 0) penalise();
    if (r.mask != nullptr) read_mask();
    float best = -INFINITY;
    int32_t best_id = INT_MAX;
#pragma unroll 1
    for (int32_t group = 0; group < slice_.groups(); ++group) {
      const int32_t at = slice_.place(Slice::warp(), group), id = slice_.first_id() + at;
      float4& four = Slice::four(at);
      float x[4] = {four.x, four.y, four.z, four.w};
      const uint32_t allowed = r.mask != nullptr ? mask()[at / 32] >> at % 32 : ~0u;
#pragma unroll
      for (int32_t k = 0; k < 4; ++k) {
        if (!(allowed >> k & 1)) x[k] = -INFINITY;
        if (x[k] > best) {
          best = x[k];
          best_id = id + k;
        }
      }
      four = {x[0], x[1], x[2], x[3]};
    }
    return slice_.likeliest(best, best_id);
  }

  // --- logprobs, of the logits as they came

  __device__ float logprob_of(int32_t id) const { return static_cast<float>(raw_logit(id) - log_sum_); }

  __device__ __noinline__ void add_logprobs(float top) {
    const WeightScale scale{.top = top, .per_logit = kLog2E};
    double sum = 0;
    slice_.for_each([&](int32_t, float logit) {
      double weight;
      two_to<double, uint64_t>(weight_exponent(logit, scale), weight);
      sum += weight;
    });
    log_sum_ = scale.top + log(slice_.sum_of_doubles(sum));
    if (shared_record().top_count > 0) add_top(top);
    if (Slice::rank() == 0)
      for (int32_t i = Slice::thread(); i < shared_record().ids_count; i += kSampleThreads) {
        shared_record().wanted[i] = logprob_of(__ldcg(shared_record().ids + i));
      }
  }

  __device__ __noinline__ void add_top(float top) {
    const int32_t wanted = shared_record().top_count;
    const WeightScale scale{.top = top, .per_logit = kLog2E};
    const Bins bins = Bins::of_width(top, kLog2E);
    const CutFinder::Gathered gathered = cuts_.gather_likeliest(wanted, false, scale);
    top_ = wanted;
    if (!gathered.fits) {
      cuts_.count(bins, false, scale);
      const CutFinder::Located where = cuts_.locate(false, static_cast<uint64_t>(wanted));
      const Cut cut = cuts_.find(bins, where, false, static_cast<uint64_t>(wanted), false, scale);
      cuts_.clear_few();
      cuts_.gather(bins, 0, kBins - 1, cut.last);
    } else if (gathered.is_all) {
      slice_.tell_from_one(Slice::rank() == 0 && Slice::thread() == 0, static_cast<uint64_t>(cuts_.few_count()), 0);
      top_ = min(wanted, static_cast<int32_t>(slice_.told(0)));
    }
    if (Slice::rank() != 0 || Slice::thread() >= cuts_.few_count()) return;
    const RankedToken mine = cuts_.few(Slice::thread());
    int32_t before = 0;
    for (int32_t i = 0; i < cuts_.few_count(); ++i) before += cuts_.few(i).before(mine);
    if (before < wanted) shared_record().top[before] = {mine.id, logprob_of(mine.id)};
  }

  // --- temperature, top-k, top-p, min-p and the draw

  __device__ __noinline__ void draw(const WeightScale& scale) {
    const SampleRecord& r = shared_record();
    const bool is_cut = r.top_k > 0 || r.top_p < 1;
    if (is_cut && draw_from_likeliest(scale)) return;
    const RankedToken last = is_cut ? cut_of_many(scale) : no_cut();
    const Weights measure{scale, last, r.least_weight};
    const Slice::Sums sums = slice_.sums(measure);
    const int32_t token = slice_.find(sums, draw_threshold(r.random, sums.total), measure);
    if (token >= 0) finish(token, SampleStatus::fine);
  }

  // Where the end lies, wherever it is.
  __device__ __noinline__ RankedToken cut_of_many(const WeightScale& scale) {
    const SampleRecord& r = shared_record();
    const Bins bins = Bins::of_width(static_cast<float>(scale.top), scale.per_logit);
    const bool weighs = r.top_p < 1;
    Cut cut{no_cut(), 0};
    cuts_.count(bins, weighs, scale);
    uint64_t total = weighs ? cuts_.total_weight() : 0;
    if (r.top_k > 0) {
      const auto top_k = static_cast<uint64_t>(r.top_k);
      const CutFinder::Located where = cuts_.locate(false, top_k);
      if (where.bin >= 0) {  // else there are fewer
        cut = cuts_.find(bins, where, false, top_k, weighs, scale);
        total = cut.weight;
      }
      if (weighs) cuts_.count(bins, weighs, scale);
    }
    if (!weighs) return cut.last;
    const uint64_t wanted = least_of_top_p(total);
    return cuts_.find(bins, cuts_.locate(true, wanted), true, wanted, true, scale).last;
  }

  // The likeliest stays even where nothing is wanted.
  __device__ uint64_t least_of_top_p(uint64_t total) const {
    const uint64_t wanted = top_p_weight(shared_record().top_p, total);
    return wanted > 0 ? wanted : 1;
  }

  // Where the end lies among the likeliest, of which there is a list in the first block. False: it does not.
  __device__ __noinline__ bool draw_from_likeliest(const WeightScale& scale) {
    constexpr int32_t kNucleus = 32;  // tokens, that top-p usually needs no more of
    const SampleRecord& r = shared_record();
    if (r.top_k > kMostListed) return false;
    if (r.top_k > 0) {
      if (!cuts_.gather_likeliest(r.top_k, false, scale).fits) return false;
      weigh_list(scale);
      if (Slice::rank() == 0) draw_from_list(0);
      return true;
    }
    uint64_t wanted = 0;
#pragma unroll 1
    for (const int32_t tokens : {kNucleus, kMostListed}) {
      const CutFinder::Gathered gathered = cuts_.gather_likeliest(tokens, wanted == 0, scale);
      if (wanted == 0) wanted = least_of_top_p(gathered.weight);
      if (!gathered.fits) return false;
      const bool suffices = cuts_.block_sum(weigh_list(scale)) >= wanted;
      slice_.tell_from_one(Slice::rank() == 0 && Slice::thread() == 0, suffices, 0);
      if (slice_.told(0) == 0) continue;
      if (Slice::rank() == 0) draw_from_list(wanted);
      return true;
    }
    return false;
  }

  // In the first block, which has the list: each thread a token's weight.
  __device__ uint64_t weigh_list(const WeightScale& scale) {
    const int32_t i = Slice::thread(), count = Slice::rank() == 0 ? cuts_.few_count() : 0;
    return i < count ? cuts_.few_weight(i) = weight_of(cuts_.few(i), scale) : 0;
  }

  // In the first block: from the list and its weights. A token has several threads, each of which looks at a part of
  // the others.
  __device__ void draw_from_list(uint64_t wanted) {
    const SampleRecord& r = shared_record();
    const int32_t count = cuts_.few_count();
    int32_t parts = 1;
    while (parts < 32 && count * parts * 2 <= kSampleThreads) parts *= 2;
    const int32_t i = Slice::thread() / parts, part = Slice::thread() % parts;
    __syncthreads();
    const bool is_there = i < count;
    const RankedToken mine = is_there ? cuts_.few(i) : RankedToken{0, INT_MAX};
    uint64_t own = is_there ? cuts_.few_weight(i) : 0;

    int32_t before = 0;
    uint64_t weight_before = 0;
#pragma unroll 2
    for (int32_t other = part; is_there && other < count; other += parts)
      if (cuts_.few(other).before(mine)) {
        ++before;
        weight_before += cuts_.few_weight(other);
      }
    before = sum_of_parts(before, parts);
    weight_before = sum_of_parts(weight_before, parts);
    bool stays = is_there && (r.top_k == 0 || before < r.top_k);
    if (r.top_p < 1) {
      if (wanted == 0) wanted = least_of_top_p(cuts_.block_sum(stays && part == 0 ? own : 0));
      stays = stays && weight_before < wanted;
    }
    if (!stays || own < r.least_weight) own = 0;
    const uint64_t left = draw_threshold(r.random, cuts_.block_sum(part == 0 ? own : 0));
    if (is_there && part == 0) cuts_.few_weight(i) = own;
    __syncthreads();
    uint64_t lower_ids = 0;
#pragma unroll 2
    for (int32_t other = part; is_there && other < count; other += parts)
      if (cuts_.few(other).id < mine.id) lower_ids += cuts_.few_weight(other);
    lower_ids = sum_of_parts(lower_ids, parts);
    if (part == 0 && lower_ids <= left && left < lower_ids + own) finish(mine.id, SampleStatus::fine);
  }
  template <class T>
  __device__ static T sum_of_parts(T x, int32_t parts) {
#pragma unroll 1
    for (int32_t mask = 1; mask < parts; mask *= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
  }

  const SampleArgs& a_;
  Slice slice_;
  CutFinder cuts_;
  int4 piece_{};  // of the record, in the first threads of the first block
  double log_sum_ = 0;
  int32_t top_ = 0;
};

__global__ void __launch_bounds__(kSampleThreads, 2) sample_kernel(const __grid_constant__ SampleArgs args) {
  CutFinder::begin();
  cluster_arrive();
  const bool is_padding = args.live != nullptr && static_cast<int32_t>(blockIdx.y) >= __ldcg(args.live);
  RowSampler row(args);
  if (!is_padding) row.ask_for_record();
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  if (!is_padding) return row.run();
  cluster_wait();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    RowSampler::say(args, __ldcg(args.number), -1, SampleStatus::fine, 0, 0);
}

constexpr int32_t kRecountThreads = 1024;
__global__ void __launch_bounds__(kRecountThreads) recount_kernel(const __grid_constant__ RecountArgs args) {
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  const int32_t thread = static_cast<int32_t>(threadIdx.x), all = args.prompt + args.generated;
  for (int32_t i = thread; i < args.vocabulary; i += kRecountThreads) args.counts[i] = 0;
  __syncthreads();
  for (int32_t i = thread; i < all; i += kRecountThreads) {
    uint32_t* const count = args.counts + __ldcg(args.text + i);
    if (i < args.prompt)
      atomicOr(count, kInPrompt);
    else
      atomicAdd(count, 1u);
  }
  __syncthreads();
  if (thread != 0) return;
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(args.recounted), "r"(args.number) : "memory");
}

constexpr size_t kGroupBytes = kSampleWarps * kGroup * sizeof(float) + kMaskWords * sizeof(uint32_t);
static_assert(kMostGroups * kGroupBytes + sizeof(SliceShared) + sizeof(CutShared) + sizeof(SampleRecord) <= 227 * 1024,
              "the largest vocabulary's logits do not fit into shared memory");

// Few rows: many blocks each, because time is latency, as long as all rows run at once. Many rows: one each, or few
// where the logits are too many for one.
int32_t blocks_for(int32_t rows, int32_t vocabulary) {
  constexpr int32_t kMultiprocessors = 132, kLargeVocabulary = 65536;
  const int32_t least = vocabulary > kLargeVocabulary ? 8 : 1;
  int32_t blocks = kMostSampleBlocks;
  while (blocks > least && rows * blocks > kMultiprocessors) blocks /= 2;
  while (blocks < kMostSampleBlocks && groups_for(vocabulary, blocks) > kMostGroups) blocks *= 2;
  return blocks;
}

}  // namespace

int32_t most_vocabulary() { return kMostGroups * kMostSampleBlocks * kSampleWarps * kGroup; }

void sample_rows(const SampleArgs& args, Exec& exec) {
  const auto kernel = reinterpret_cast<const void*>(sample_kernel);
  const int32_t blocks = blocks_for(args.rows, args.vocabulary);
  const size_t bytes = groups_for(args.vocabulary, blocks) * kGroupBytes;
  static const bool can_wait = quire::cuda::can_wait(kernel, "sampling");
  check(can_wait, "sampling on a GPU needs one of Hopper's kind");
  quire::cuda::check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "sampling from a vocabulary of ", args.vocabulary);
  quire::cuda::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                          "sampling by clusters of ", blocks, " blocks");
  quire::cuda::launch_after(sample_kernel, dim3(static_cast<uint32_t>(blocks), static_cast<uint32_t>(args.rows)),
                            kSampleThreads, bytes, quire::cuda::stream_of(exec), "sampling", args, blocks);
}

void recount(const RecountArgs& args, Exec& exec) {
  quire::cuda::launch_after(recount_kernel, dim3(1), kRecountThreads, 0, quire::cuda::stream_of(exec), "recount", args);
}

}  // namespace quire::ops::cuda
