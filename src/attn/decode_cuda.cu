// Few queries of each sequence over many keys, K and V of 16 or 8 bits: bound by the memory, so all that counts is that
// every multiprocessor has loads under way from the first to the last moment.
//
// The work is one line of units, kUnit keys of a sequence each, cut into equal runs (decode_work_cuda.cuh). A run is
// taken by a group of blocks, one for each kv head: they go through the same tokens at the same time, whose heads lie
// side by side in memory. The cut is made here from the step's lengths, so a captured graph stays balanced whatever
// they are. A run may begin or end inside a sequence; such a part goes to the workspace, and the block that arrives
// last merges the parts in the order of their keys.
//
// In a block each warp loads for itself: a tile of keys at a time comes by cp.async into stages of its own. Against it
// go 16 rows of queries (heads of the group x query rows) of a warp, whose softmax is its own (decode_tile_cuda.cuh).
// Where there are more rows, 2 or 4 warps are a team: each takes 16 of the rows through the tiles of all of them.
//
//   16 rows    8 teams of one, each tile is read by its own warp
//   32 rows    4 teams of two                                        barriers only inside a team
//   64 rows    2 teams of four
//
// At the end of a part the warps leave their sums in shared memory, each in the stage that it has just emptied and that
// has just the room; the next part's keys are on their way into the others. The sums of a row's warps, and the parts of
// several blocks, are added by the thread that writes the columns.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attn/attend_cuda.cuh"
#include "attn/decode_tile_cuda.cuh"
#include "attn/decode_work_cuda.cuh"
#include "attn/tensor_core_cuda.cuh"

namespace quire::attn::cuda {
namespace {

// Of the 227 KiB that a block of an H100 may have; what is left is for the lines.
constexpr int32_t kMostStagesBytes = 192 * 1024;
constexpr int32_t kFewestStages = 2;
template <class E>
constexpr int32_t kMostStages = kMostStagesBytes / (kWarps * E::kStageBytes);

struct Decode {
  AttendArgs args;
  int32_t group, batch;
  int32_t rows;                    // most of a kv head: heads of the group x query rows
  int32_t team;                    // warps that take the same keys: 1, 2 or 4
  int32_t stages;                  // of a warp: kFewestStages or kMostStages
  int32_t key_bytes, value_bytes;  // from one slot to the next
  float* split_out;                // [2 * blocks, rows, dim]
  float* split_top;                // [2 * blocks, rows]
  float* split_sum;
  int32_t* arrivals;  // [sequences, kv heads]

  __device__ int32_t kv_head() const { return static_cast<int32_t>(blockIdx.x) % args.kv.kv_heads; }
};

// A warp's place in the block: its team, and which 16 rows of a part it takes.
struct WarpPlace {
  int32_t warp, team, member;
  __device__ explicit WarpPlace(const Decode& d)
      : warp(static_cast<int32_t>(threadIdx.x) / kWarp), team(warp / d.team), member(warp % d.team) {}

  __device__ void meet_team(const Decode& d) const {
    __syncwarp();
    if (d.team > 1) meet_warps(1 + team, d.team * kWarp);
  }
};

// Query row and head of a part's row; row < 0: none.
struct Row {
  int32_t row, head;
};
__device__ Row row_at(const Decode& d, const Part& part, int32_t index) {
  const int32_t row = part.first_row + index / d.group;
  return {row < part.last_row ? row : -1, d.kv_head() * d.group + index % d.group};
}

// --- loading

// slot: of the tile's key `lane`; -1: none, which gives zeros.
template <class E>
__device__ void load_tile(const Decode& d, int32_t slot, uint32_t stage) {
  constexpr int32_t kRowsAtOnce = kWarp / E::kPieces;
  const int32_t lane = threadIdx.x % kWarp, piece = lane % E::kPieces;
  const std::byte* keys = d.args.kv.keys + int64_t{d.kv_head()} * E::kRowBytes + piece * 16;
  const std::byte* values = d.args.kv.values + int64_t{d.kv_head()} * E::kRowBytes + piece * 16;
#pragma unroll
  for (int32_t i = 0; i < E::kKeys / kRowsAtOnce; ++i) {
    const int32_t row = lane / E::kPieces + i * kRowsAtOnce;
    const int32_t at = __shfl_sync(~0u, slot, row);
    const int64_t from = max(at, 0);
    copy_async(piece_at<E>(stage, row, piece), keys + from * d.key_bytes, at >= 0);
    copy_async(piece_at<E>(stage + E::kKeys * E::kRowBytes, row, piece), values + from * d.value_bytes, at >= 0);
  }
}

// A warp's tiles, ahead of their use: of each part the keys kKeys * (warp, warp + kWarps, ...). Tile after tile goes to
// the next of the warp's stages, whatever part it is of. The warps of a team are always at the same tile of theirs, so
// where the first of them has one, the others load zeros if need be.
template <class E>
class Loader {
 public:
  static constexpr int32_t kStride = kWarps * E::kKeys;

  __device__ Loader(const Decode& d, const WarpPlace& place, const Walk& walk, std::byte* stages)
      : d_(d), place_(place), walk_(walk), all_stages_(stages) {
    next_part();
    for (int32_t i = 0; i < d_.stages - 1; ++i) load_next();
  }

  // Waits for the oldest tiles that were not taken yet and begins to load others. The tiles taken before are given up.
  // Returns the tile of the team's first warp; the others' follow at warp_bytes().
  __device__ uint32_t take() {
    if (d_.stages == kFewestStages)
      wait_for_copies<kFewestStages - 2>();
    else
      wait_for_copies<kMostStages<E> - 2>();
    place_.meet_team(d_);  // everybody's copies are there, and everybody has done with the stage that comes next
    load_next();
    return shared_address(stage(place_.warp - place_.member, loaded_));
  }

  __device__ uint32_t warp_bytes() const { return d_.stages * E::kStageBytes; }

  // The stage taken last: nothing is loaded into it before the next take().
  __device__ float* free_stage() const { return reinterpret_cast<float*>(stage(place_.warp, loaded_)); }

 private:
  // Slots of so many tiles are looked up at once, two tiles or more before they are needed: table entries may come from
  // far away.
  static constexpr int32_t kTilesOfLookUp = kWarp / E::kKeys, kLookUps = kTilesOfLookUp == 1 ? 3 : 2;

  __device__ std::byte* stage(int32_t warp, int32_t index) const {
    return all_stages_ + (warp * d_.stages + index) * E::kStageBytes;
  }

  __device__ int32_t look_up_ahead(int32_t look_ups) const {
    const int32_t lane = threadIdx.x % kWarp;
    const int32_t key = key_ + (look_ups * kTilesOfLookUp + lane / E::kKeys) * kStride;
    return look_up(d_.args.keys, part_, key + place_.member * E::kKeys + lane % E::kKeys);
  }

  // The next part in which the team has a tile.
  __device__ void next_part() {
    has_tile_ = false;
    while (!has_tile_ && !walk_.over()) {
      part_ = walk_.next();
      key_ = part_.first + (place_.warp - place_.member) * E::kKeys;
      has_tile_ = key_ < part_.end;
    }
    if (!has_tile_) return;
    tile_of_look_up_ = 0;
#pragma unroll
    for (int32_t i = 0; i < kLookUps; ++i) slots_[i] = look_up_ahead(i);
  }

  __device__ void next_tile() {
    key_ += kStride;
    if (key_ >= part_.end) return next_part();
    if (++tile_of_look_up_ < kTilesOfLookUp) return;
    tile_of_look_up_ = 0;
#pragma unroll
    for (int32_t i = 0; i + 1 < kLookUps; ++i) slots_[i] = slots_[i + 1];
    slots_[kLookUps - 1] = look_up_ahead(kLookUps - 1);
  }

  __device__ void load_next() {
    if (has_tile_) {
      const int32_t source = threadIdx.x % E::kKeys + tile_of_look_up_ * E::kKeys;
      load_tile<E>(d_, __shfl_sync(~0u, slots_[0], source), shared_address(stage(place_.warp, loaded_)));
      next_tile();
    }
    loaded_ = loaded_ + 1 == d_.stages ? 0 : loaded_ + 1;
    commit_copies();  // also when there is nothing: groups are counted
  }

  const Decode& d_;
  const WarpPlace& place_;
  Walk walk_;
  Part part_;
  std::byte* all_stages_;
  int32_t key_;              // first of the team's tiles
  int32_t slots_[kLookUps];  // of this lane's key in the tiles to come
  int32_t tile_of_look_up_, loaded_ = 0;
  bool has_tile_;
};

// --- one part: units of one sequence, for one kv head

template <class E>
__device__ void load_queries(const Decode& d, const Part& part, const WarpPlace& place, Queries<E>& q) {
  const ConstHeadRows& rows = d.args.q;
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(d, part, place.member * kRows + lane / 4 + half * 8);
    const bool exists = row.row >= 0;
    const auto* words = reinterpret_cast<const uint32_t*>(
        rows.data + (int64_t{max(row.row, 0)} * rows.row_stride + int64_t{row.head} * E::kDim) * 2);
    q.scale[half] = d.args.scale * d.args.kv.key_scale * kLog2e;
    if constexpr (E::kIsNarrow)
      q.scale[half] *= load_scaled<E>(rows.type, words, exists, half, q);
    else
      load_words<E>(words, exists, half, q);
  }
}

// Of the part's keys.
__device__ Seen seen_by(const Decode& d, const Part& part, const WarpPlace& place) {
  Seen seen;
  seen.branches = part.length;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(d, part, place.member * kRows + threadIdx.x % kWarp / 4 + half * 8);
    const Span span = row.row < 0 ? Span{0, 0} : span_of(d.args, part.sequence(), row.row);
    const auto first = static_cast<int32_t>(span.first), end = static_cast<int32_t>(span.end);
    seen.first[half] = max(first, part.first);
    seen.count[half] = max(0, min(end, min(part.length, part.end)) - seen.first[half]);
    const int32_t branch = part.length + (row.row - part.first_row) * d.args.keys.most_branch_tokens;
    seen.branch_first[half] = max(branch + max(0, first - part.length), part.first);
    seen.branch_count[half] = max(0, min(branch + end - part.length, part.end) - seen.branch_first[half]);
  }
  return seen;
}

template <class E>
__device__ void fold_part(const Decode& d, const Part& part, const WarpPlace& place, Loader<E>& loader, Sums<E>& sums) {
  Queries<E> q;
  load_queries<E>(d, part, place, q);
  const Seen seen = seen_by(d, part, place);
  for (int32_t team_key = part.first + (place.warp - place.member) * E::kKeys; team_key < part.end;
       team_key += Loader<E>::kStride) {
    uint32_t tile = loader.take();
    const int32_t end = min(team_key + d.team * E::kKeys, part.end);
    for (int32_t key = team_key; key < end; key += E::kKeys, tile += loader.warp_bytes())
      fold_tile<E>(d.args, q, seen, key, tile, sums);
  }
}

// --- results, four columns of a row at a time

struct Quad {
  float4 out = {0, 0, 0, 0};  // relative to the row's top
  float top = -INFINITY;      // a power of two
  float sum = 0;
};

// In the order of their numbers.
template <int32_t kCount>
__device__ void fold_quads(Quad& total, const Quad (&quads)[kCount]) {
  float top = total.top;
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) top = fmaxf(top, quads[i].top);
  if (top == -INFINITY) return;
  const float shrink = exp2f(total.top - top);
  float4 out = {total.out.x * shrink, total.out.y * shrink, total.out.z * shrink, total.out.w * shrink};
  float sum = total.sum * shrink;
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) {
    const float share = exp2f(quads[i].top - top);
    const float4& more = quads[i].out;
    out = {out.x + more.x * share, out.y + more.y * share, out.z + more.z * share, out.w + more.w * share};
    sum += quads[i].sum * share;
  }
  total = {out, top, sum};
}

// use(row, quad) by some thread, for all quads of `rows` rows.
template <class E, class Use>
__device__ void for_each_quad(int32_t rows, const Use& use) {
  constexpr int32_t kQuads = E::kDim / 4;
  for (int32_t i = threadIdx.x; i < rows * kQuads; i += kThreads) use(i / kQuads, i % kQuads);
}

// Where the warps of a block meet.
struct Meeting {
  float top[kWarps][kRows], sum[kWarps][kRows];
  const float* out[kWarps];  // f32 [kRows, kDim], as place_of() says
  bool is_last;
};

template <class E>
__device__ void leave_sums(const Decode& d, const WarpPlace& place, const Sums<E>& sums, float* out, Meeting& meeting,
                           int32_t rows) {
  static_assert(E::kStageBytes == kRows * E::kDim * sizeof(float), "a warp's sums fill one of its stages");
  const int32_t lane = threadIdx.x % kWarp;
  place.meet_team(d);  // who shares the stage's keys has done with them
  if (lane == 0) meeting.out[place.warp] = out;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = lane / 4 + half * 8;
    const float sum = quad_sum(sums.sum[half]);
    if (lane % 4 == 0) {
      meeting.top[place.warp][row] = sums.top[half];
      meeting.sum[place.warp][row] = sum;
    }
    if (place.member * kRows + row < rows) leave_row<E>(sums, half, out);
  }
}

// Of all the warps that took the row.
template <class E>
__device__ Quad met(const Decode& d, const Meeting& meeting, int32_t row, int32_t quad) {
  const int32_t member = row / kRows, row_of_warp = row % kRows;
  Quad quads[kWarps], total;
#pragma unroll
  for (int32_t w = 0; w < kWarps; ++w)
    if ((w & (d.team - 1)) == member)
      quads[w] = {*reinterpret_cast<const float4*>(meeting.out[w] + place_of<E>(row_of_warp, quad * 4)),
                  meeting.top[w][row_of_warp], meeting.sum[w][row_of_warp]};
  fold_quads(total, quads);
  return total;
}

__device__ void store_four(Dtype type, std::byte* array, int64_t index, const float4& x) {
  if (type == Dtype::bf16)
    *reinterpret_cast<uint2*>(array + index * 2) = {pair<__nv_bfloat16>(x.x, x.y), pair<__nv_bfloat16>(x.z, x.w)};
  else if (type == Dtype::f16)
    *reinterpret_cast<uint2*>(array + index * 2) = {pair<__half>(x.x, x.y), pair<__half>(x.z, x.w)};
  else
    *reinterpret_cast<float4*>(array + index * 4) = x;
}

template <class E>
__device__ void write_quad(const Decode& d, const Part& part, int32_t index, int32_t quad, const Quad& result) {
  const AttendArgs& args = d.args;
  const Row row = row_at(d, part, index);
  const bool is_empty = result.top == -INFINITY;
  const float top = result.top / kLog2e;
  const float factor = factor_of(top, result.sum, args.sinks ? args.sinks[row.head] : -INFINITY, args.kv.value_scale);
  const int64_t at = row.row * args.out.row_stride + int64_t{row.head} * E::kDim + quad * 4;
  const float4& out = result.out;
  store_four(args.out.type, args.out.data, at, {out.x * factor, out.y * factor, out.z * factor, out.w * factor});
  if (args.lse && quad == 0) args.lse[row.head * args.q.rows + row.row] = is_empty ? -INFINITY : top + logf(result.sum);
}

// --- parts of several blocks

// Where the parts of one sequence and kv head lie.
struct Parts {
  int64_t first_slot, second_slot;  // from the second on they follow each other at the same distance
  int32_t distance, count;
  __device__ int64_t slot(int32_t part) const {
    return part == 0 ? first_slot : second_slot + int64_t{part - 1} * distance;
  }
};

// A part's place in the workspace: a block leaves at most two, where its run begins and where it ends.
__device__ int64_t slot_of_part(const Decode& d, const Runs& runs, int32_t run, const Part& part) {
  return 2 * (int64_t{run} * d.args.kv.kv_heads + d.kv_head()) + (runs.begin(run) < part.first_unit ? 1 : 0);
}

template <class E>
__device__ void leave_quad(const Decode& d, int64_t slot, int32_t row, int32_t quad, const Quad& result) {
  const int64_t at = slot * d.rows + row;
  __stcg(reinterpret_cast<float4*>(d.split_out + at * E::kDim) + quad, result.out);
  if (quad != 0) return;
  __stcg(d.split_top + at, result.top);
  __stcg(d.split_sum + at, result.sum);
}

// Whether this block's part is the last of `parts` to arrive. The count wraps: the next layer finds it at zero. That
// one thread releases and acquires is enough: what the others wrote or will read is ordered with it by the barriers.
__device__ bool arrive_last(int32_t* arrivals, int32_t parts, Meeting& meeting) {
  __syncthreads();
  if (threadIdx.x == 0) meeting.is_last = count_arrival(arrivals, parts - 1) == parts - 1;
  __syncthreads();
  return meeting.is_last;
}

// What all blocks left. Loads of several parts are under way at once.
template <class E>
__device__ Quad merged(const Decode& d, const Parts& parts, int32_t row, int32_t quad) {
  constexpr int32_t kAtOnce = 16;
  Quad total;
  for (int32_t first = 0; first < parts.count; first += kAtOnce) {
    Quad quads[kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      if (first + i >= parts.count) continue;
      const int64_t at = parts.slot(first + i) * d.rows + row;
      quads[i] = {__ldcg(reinterpret_cast<const float4*>(d.split_out + at * E::kDim) + quad), __ldcg(d.split_top + at),
                  __ldcg(d.split_sum + at)};
    }
    fold_quads(total, quads);
  }
  return total;
}

// --- the kernel

template <class E>
__device__ void attend_part(const Decode& d, const Part& part, const WarpPlace& place, const Runs& runs, int32_t run,
                            Loader<E>& loader, Meeting& meeting) {
  const int32_t rows = (part.last_row - part.first_row) * d.group, kv_heads = d.args.kv.kv_heads;
  {
    Sums<E> sums;
    fold_part<E>(d, part, place, loader, sums);
    leave_sums<E>(d, place, sums, loader.free_stage(), meeting, rows);
  }
  __syncthreads();
  const int32_t first_run = runs.run_of(part.first_unit), last_run = runs.run_of(part.first_unit + part.units - 1);
  if (first_run == last_run) {
    for_each_quad<E>(
        rows, [&](int32_t row, int32_t quad) { write_quad<E>(d, part, row, quad, met<E>(d, meeting, row, quad)); });
    __syncthreads();  // the stages are the loader's again
    return;
  }
  const Parts parts{.first_slot = slot_of_part(d, runs, first_run, part),
                    .second_slot = slot_of_part(d, runs, first_run + 1, part),
                    .distance = 2 * kv_heads,
                    .count = last_run - first_run + 1};
  for_each_quad<E>(rows, [&](int32_t row, int32_t quad) {
    leave_quad<E>(d, parts.slot(run - first_run), row, quad, met<E>(d, meeting, row, quad));
  });
  if (!arrive_last(d.arrivals + int64_t{part.b} * kv_heads + d.kv_head(), parts.count, meeting)) return;
  for_each_quad<E>(
      rows, [&](int32_t row, int32_t quad) { write_quad<E>(d, part, row, quad, merged<E>(d, parts, row, quad)); });
}

// Rows of sequences without keys, and rows past the live ones.
__device__ void write_empty_rows(const Decode& d, int32_t live, const Line* lines) {
  const AttendArgs& args = d.args;
  const auto write_empty = [&](int32_t first, int32_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int32_t i = threadIdx.x; i < args.out.heads * args.out.dim; i += kThreads)
        store(args.out.type, args.out.data, row * args.out.row_stride + i, 0);
      for (int32_t head = threadIdx.x; args.lse && head < args.q.heads; head += kThreads)
        args.lse[head * args.q.rows + row] = -INFINITY;
    }
  };
  for (int32_t b = blockIdx.x; b < live; b += gridDim.x)
    if (lines[b].units_before == lines[b + 1].units_before) write_empty(lines[b].first_row, lines[b + 1].first_row);
  for (int32_t row = lines[live].first_row + blockIdx.x; row < args.q.rows; row += gridDim.x) write_empty(row, row + 1);
}

// Shared memory: the warps' stages, then the lines.
template <class E>
size_t shared_bytes(int32_t stages, int32_t batch) {
  return static_cast<size_t>(kWarps) * stages * E::kStageBytes + (static_cast<size_t>(batch) + 1) * sizeof(Line);
}

template <class E>
__global__ void __launch_bounds__(kThreads, 1) decode_kernel(const __grid_constant__ Decode d) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Meeting meeting;
  auto* const lines = reinterpret_cast<Line*>(memory + kWarps * d.stages * E::kStageBytes);
  const int32_t kv_heads = d.args.kv.kv_heads;
  wait_for_kernels_before();
  let_kernels_after_start();
  const int32_t live = write_lines(d.args, d.batch, lines);
  const Runs runs(lines[live].units_before, static_cast<int32_t>(gridDim.x) / kv_heads);
  const int32_t run = static_cast<int32_t>(blockIdx.x) / kv_heads;
  if (run < runs.count) {
    const WarpPlace place(d);
    Walk walk(d.args, lines, live, runs, run);
    Loader<E> loader(d, place, walk, memory);
    while (!walk.over()) attend_part<E>(d, walk.next(), place, runs, run, loader, meeting);
  }
  write_empty_rows(d, live, lines);
}

// The kernel's blocks may take their places while the kernel before it in the stream is still at its end, which saves
// most of the time between the two. Nothing else overlaps: a block waits for that kernel to have ended, and its writes
// to be seen, before it reads or writes anything (metadata, q, K and V, the workspace), and only then allows the same
// to the next. So when a block goes on, all kernels of the stream before its own have ended. Code for older devices
// has no instruction to wait and is launched in the plain way.
void start(void (*kernel)(Decode), int32_t blocks, size_t shared, cudaStream_t stream, const Decode& d) {
  cudaFuncAttributes code;
  check_cuda(cudaFuncGetAttributes(&code, kernel), "the kernel of attention is not known");
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = code.ptxVersion >= kLeastVersionThatWaits;
  const cudaLaunchConfig_t launch = {.gridDim = dim3(static_cast<uint32_t>(blocks)),
                                     .blockDim = dim3(kThreads),
                                     .dynamicSmemBytes = shared,
                                     .stream = stream,
                                     .attrs = &early,
                                     .numAttrs = 1};
  check_cuda(cudaLaunchKernelEx(&launch, kernel, d), "attention was not launched");
}

// As many bytes under way as the lines leave room for. False: not even the fewest.
template <class E>
bool launch(Decode d, cudaStream_t stream) {
  const int32_t kv_heads = d.args.kv.kv_heads;
  const int32_t processors = std::min<int32_t>(attribute(cudaDevAttrMultiProcessorCount), kMostSplitBlocks);
  const int32_t blocks = std::max(1, processors / kv_heads) * kv_heads;
  const auto room = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  constexpr size_t kDeclared = sizeof(Meeting) + 256;
  d.stages = shared_bytes<E>(kMostStages<E>, d.batch) + kDeclared <= room ? kMostStages<E> : kFewestStages;
  const size_t shared = shared_bytes<E>(d.stages, d.batch);
  if (shared + kDeclared > room) return false;
  const auto kernel = decode_kernel<E>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
             "attention needs ", shared, " bytes of shared memory");
  start(kernel, blocks, shared, stream, d);
  return true;
}

template <class Stored>
bool launch_at_dim(const Decode& d, cudaStream_t stream) {
  return d.args.kv.key_dim == 64 ? launch<Elements<Stored, 64>>(d, stream) : launch<Elements<Stored, 128>>(d, stream);
}

// Copied are 16-byte pieces of K and V at 32-bit distances, 4 bytes of queries at a time, and four columns of the
// output.
bool has_strides(const AttendArgs& args) {
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  const kv::LayerKv& kv = args.kv;
  const int64_t piece = 16 / size_of(kv.type);
  const int64_t most_stride = std::numeric_limits<int32_t>::max() / size_of(kv.type);
  return kv.key_stride <= most_stride && kv.value_stride <= most_stride && address(kv.keys) % 16 == 0 &&
         address(kv.values) % 16 == 0 && kv.key_stride % piece == 0 && kv.value_stride % piece == 0 &&
         address(args.q.data) % 4 == 0 && args.q.row_stride % 2 == 0 && address(args.out.data) % 16 == 0 &&
         args.out.row_stride % 4 == 0;
}

bool is_half(Dtype type) { return type == Dtype::bf16 || type == Dtype::f16; }

int32_t rows_of(const AttendArgs& args) { return args.keys.most_queries * (args.q.heads / args.kv.kv_heads); }

bool has_workspace(const AttendArgs& args) {
  const MetadataArena& arena = *args.arena;
  return args.kv.kv_heads <= std::min(arena.limits().kv_heads, kMostSplitBlocks) &&
         int64_t{2} * kMostSplitBlocks * rows_of(args) <= arena.shape(Buf::split_partial_out).rows;
}

bool fits(const AttendArgs& args) {
  const kv::LayerKv& kv = args.kv;
  return is_half(args.q.type) && (kv.type == args.q.type || kv.type == Dtype::f8e4m3) && !kv.latent() &&
         kv.key_dim == kv.value_dim && (kv.key_dim == 64 || kv.key_dim == 128) && rows_of(args) > 0 &&
         rows_of(args) <= kMostSplitRows && args.keys.set != Set::local && has_strides(args) && has_workspace(args);
}

}  // namespace

bool decode(const AttendArgs& args, Exec& exec) {
  if (!fits(args)) return false;
  const MetadataArena& arena = *args.arena;
  const int32_t rows = rows_of(args);
  const Decode d{.args = args,
                 .group = args.q.heads / args.kv.kv_heads,
                 .batch = arena.limits().batch,
                 .rows = rows,
                 .team = rows <= kRows       ? 1
                         : rows <= 2 * kRows ? 2
                                             : 4,
                 .stages = 0,
                 .key_bytes = static_cast<int32_t>(args.kv.key_stride * size_of(args.kv.type)),
                 .value_bytes = static_cast<int32_t>(args.kv.value_stride * size_of(args.kv.type)),
                 .split_out = arena.floats(Buf::split_partial_out),
                 .split_top = arena.floats(Buf::split_partial_top),
                 .split_sum = arena.floats(Buf::split_partial_sum),
                 .arrivals = arena.counts(Buf::split_arrivals)};
  const cudaStream_t stream = stream_of(exec);
  if (args.kv.type == Dtype::f8e4m3) return launch_at_dim<__nv_fp8_e4m3>(d, stream);
  return args.kv.type == Dtype::bf16 ? launch_at_dim<__nv_bfloat16>(d, stream) : launch_at_dim<__half>(d, stream);
}

}  // namespace quire::attn::cuda
