// Few queries of each sequence over many keys, bf16 or f16: bound by the memory, so all that counts is that every
// multiprocessor has loads under way from the first to the last moment.
//
// The work is one line of units, kUnit keys of a sequence each, cut into equal runs. A run is taken by a group of
// blocks, one for each kv head: they go through the same tokens at the same time, whose heads lie side by side in
// memory. The cut is made here from the step's lengths, so a captured graph stays balanced whatever they are. A run may
// begin or end inside a sequence; such a part goes to the workspace, and the block that arrives last merges the parts
// in the order of their keys.
//
// In a block each warp is for itself: kTile keys at a time come by cp.async into stages of its own, 16 rows of queries
// (heads of the group x query rows) are multiplied with them in tensor cores, and the softmax is the warp's own. Only
// at the end of a part do the warps meet, while the next part's keys are already on their way. Rows of K and V lie in
// shared memory as in global memory, their 16-byte pieces permuted by the row's number so that eight rows never share a
// bank.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attn/attend_cuda.cuh"

namespace quire::attn::cuda {
namespace {

constexpr int32_t kWarp = 32, kWarps = 8, kThreads = kWarps * kWarp;
constexpr int32_t kRows = kSplitTileRows;  // of a tensor-core tile
constexpr int32_t kTile = 16;              // keys that a warp takes at a time
constexpr int32_t kUnit = 64;              // keys by which the work is cut
constexpr float kLog2e = 1.4426950408889634f;

template <int32_t kDim>
constexpr int32_t kStageBytes = 4 * kTile * kDim;  // K, then V, two bytes an element

struct Decode {
  AttendArgs args;
  int32_t group, batch;
  int32_t rows;      // most of a kv head: heads of the group x query rows
  float* split_out;  // [2 * blocks, kRows, dim]
  float* split_top;  // [2 * blocks, kRows]
  float* split_sum;
  int32_t* arrivals;  // [sequences, kv heads]
  size_t meeting_bytes;
};

// --- instructions

__device__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes, or zeros when there is nothing to read.
__device__ void copy_async(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0));
}
__device__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int32_t kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft));
}

__device__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

template <class T>
__device__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class T>
__device__ uint32_t pair(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &both, sizeof(bits));
  } else {
    const __half2 both = __floats2half2_rn(low, high);
    memcpy(&bits, &both, sizeof(bits));
  }
  return bits;
}

__device__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// --- how the work is cut

// Keys of a sequence that any of its rows sees, in whole tiles from the first.
struct Keys {
  int32_t first, end;  // counted from the sequence's first key
  __device__ int32_t units() const { return (end - first + kUnit - 1) / kUnit; }
};

__device__ Keys keys_of(const AttendArgs& args, int32_t b) {
  const KeyView& keys = args.keys;
  const int32_t end = keys.lengths[b], queries = keys.cu_q[b + 1] - keys.cu_q[b];
  if (queries == 0) return {0, 0};
  const int32_t first = args.window < 0 || !keys.causal ? 0 : max(0, end - queries - args.window) / kTile * kTile;
  return {first, end};
}

// prefix[b]: units of one kv head in the sequences before b.
__device__ void count_units(const AttendArgs& args, int32_t live, int32_t* prefix) {
  __shared__ int32_t sums[kWarps];
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int32_t carry = 0;
  for (int32_t first = 0; first <= live; first += kThreads) {
    const int32_t b = first + static_cast<int32_t>(threadIdx.x);
    const int32_t own = b < live ? keys_of(args, b).units() : 0;
    int32_t inclusive = own;
    for (int32_t step = 1; step < kWarp; step *= 2) {
      const int32_t other = __shfl_up_sync(~0u, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    if (lane == kWarp - 1) sums[warp] = inclusive;
    __syncthreads();
    int32_t before = carry;
    for (int32_t w = 0; w < kWarps; ++w) {
      if (w < warp) before += sums[w];
      carry += sums[w];
    }
    if (b <= live) prefix[b] = before + inclusive - own;
    __syncthreads();
  }
}

// The runs, each the units [begin(run), begin(run + 1)).
struct Runs {
  int32_t count, each, longer;  // every run has `each` units, the first `longer` ones have one more
  __device__ Runs(int32_t total, int32_t most)
      : count(min(total, most)),  // so none is empty
        each(count ? total / count : 0),
        longer(total - each * count) {}
  __device__ int32_t begin(int32_t run) const { return run * each + min(run, longer); }
  __device__ int32_t run_of(int32_t unit) const {
    const int32_t in_longer = longer * (each + 1);
    return unit < in_longer ? unit / (each + 1) : longer + (unit - in_longer) / each;
  }
};

// --- one part: units of one sequence, for one kv head

struct Part {
  Sequence sequence;
  int32_t b, kv_head;
  int32_t first, end;         // keys, counted from the sequence's first
  int32_t first_unit, units;  // of the whole sequence
};

// The parts of a run, one after the other.
struct Walk {
  const AttendArgs& args;
  const int32_t* prefix;
  int32_t unit, end;  // what is left of the run
  int32_t b;          // at or before the sequence of `unit`

  __device__ Walk(const AttendArgs& given, const int32_t* given_prefix, int32_t live, const Runs& runs, int32_t run)
      : args(given), prefix(given_prefix), unit(runs.begin(run)), end(runs.begin(run + 1)), b(0) {
    int32_t high = live;
    while (high - b > 1) {
      const int32_t middle = (b + high) / 2;
      (prefix[middle] <= unit ? b : high) = middle;
    }
  }

  __device__ bool over() const { return unit >= end; }
  __device__ Part next() {
    while (prefix[b + 1] <= unit) ++b;
    const int32_t units = prefix[b + 1] - prefix[b], at = unit - prefix[b];
    const int32_t count = min(end - unit, units - at);
    const Keys keys = keys_of(args, b);
    const Part part{.sequence = sequence_at(args.keys, b),
                    .b = b,
                    .kv_head = static_cast<int32_t>(blockIdx.x) % args.kv.kv_heads,
                    .first = keys.first + at * kUnit,
                    .end = min(keys.first + (at + count) * kUnit, keys.end),
                    .first_unit = unit - at,
                    .units = units};
    unit += count;
    return part;
  }
};

// A warp's share of a part: row t / 4 and row t / 4 + 8 of a tile are this thread's.
template <int32_t kDim>
struct Sums {
  float out[kDim / 8][4] = {};
  float top[2] = {-INFINITY, -INFINITY};  // in powers of two
  float sum[2] = {0, 0};                  // of this thread's columns alone until the end
};

// Where 16-byte piece `piece` of row `row` lies.
template <int32_t kDim>
__device__ uint32_t piece_at(uint32_t base, int32_t row, int32_t piece) {
  return base + row * (kDim * 2) + ((piece ^ (row & 7)) << 4);
}

// Slot of the key that this lane looks up (lanes 16 to 31 repeat); -1: past the end.
__device__ int32_t look_up(const KeyView& keys, const Part& part, int32_t key) {
  if (key >= part.end) return -1;
  const int32_t shift = keys.page_size.shift();
  return (part.sequence.pages[key >> shift].value << shift) + (key & ((1 << shift) - 1));
}

template <int32_t kDim>
__device__ void load_tile(const AttendArgs& args, const Part& part, int32_t slot, uint32_t stage) {
  constexpr int32_t kPieces = kDim * 2 / 16, kRowsAtOnce = kWarp / kPieces;
  const kv::LayerKv& kv = args.kv;
  const int32_t lane = threadIdx.x % kWarp, piece = lane % kPieces;
  const std::byte* keys = kv.keys + int64_t{part.kv_head} * kDim * 2 + piece * 16;
  const std::byte* values = kv.values + int64_t{part.kv_head} * kDim * 2 + piece * 16;
#pragma unroll
  for (int32_t i = 0; i < kTile / kRowsAtOnce; ++i) {
    const int32_t row = lane / kPieces + i * kRowsAtOnce;
    const int32_t at = __shfl_sync(~0u, slot, row);
    const bool exists = at >= 0;
    const int64_t from = exists ? at : 0;
    copy_async(piece_at<kDim>(stage, row, piece), keys + from * kv.key_stride * 2, exists);
    copy_async(piece_at<kDim>(stage + kTile * kDim * 2, row, piece), values + from * kv.value_stride * 2, exists);
  }
}

template <class T, int32_t kDim>
__device__ void multiply_keys(const uint32_t (&q)[kDim / 16][4], uint32_t stage, float (&scores)[2][4]) {
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t row = (lane / 16) * 8 + lane % 8, half = lane / 8 % 2;
#pragma unroll
  for (int32_t step = 0; step < kDim / 16; ++step) {
    uint32_t k[4];
    load_matrices(k, piece_at<kDim>(stage, row, 2 * step + half));
    multiply_add<T>(scores[0], q[step], k[0], k[1]);
    multiply_add<T>(scores[1], q[step], k[2], k[3]);
  }
}

template <class T, int32_t kDim>
__device__ void multiply_values(const uint32_t (&weights)[4], uint32_t stage, Sums<kDim>& sums) {
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t row = lane % 16, half = lane / 16;
#pragma unroll
  for (int32_t step = 0; step < kDim / 16; ++step) {
    uint32_t v[4];
    load_matrices_transposed(v, piece_at<kDim>(stage + kTile * kDim * 2, row, 2 * step + half));
    multiply_add<T>(sums.out[2 * step], weights, v[0], v[1]);
    multiply_add<T>(sums.out[2 * step + 1], weights, v[2], v[3]);
  }
}

// Keys [first, end) that the thread's two rows see, counted from the sequence's first.
struct Seen {
  int32_t first[2], end[2];
};

template <class T, int32_t kDim>
__device__ void fold_tile(const AttendArgs& args, const uint32_t (&q)[kDim / 16][4], const Seen& seen,
                          int32_t first_key, uint32_t stage, Sums<kDim>& sums) {
  float scores[2][4] = {};
  multiply_keys<T, kDim>(q, stage, scores);
  const int32_t lane = threadIdx.x % kWarp;
  const float scale = args.scale * args.kv.key_scale;
  float tops[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int32_t n = 0; n < 2; ++n)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t key = first_key + n * 8 + lane % 4 * 2 + i % 2, row = i / 2;
      float x = scores[n][i] * scale;
      if (args.softcap > 0) x = args.softcap * tanhf(x / args.softcap);
      x = key >= seen.first[row] && key < seen.end[row] ? x * kLog2e : -INFINITY;
      scores[n][i] = x;
      tops[row] = fmaxf(tops[row], x);
    }
#pragma unroll
  for (int32_t row = 0; row < 2; ++row) {
    const float top = fmaxf(sums.top[row], quad_max(tops[row]));
    const float base = top == -INFINITY ? 0 : top;
    const float shrink = exp2f(sums.top[row] - base);
    sums.top[row] = top;
    sums.sum[row] *= shrink;
#pragma unroll
    for (int32_t n = 0; n < 2; ++n)
#pragma unroll
      for (int32_t i = 2 * row; i < 2 * row + 2; ++i) {
        scores[n][i] = exp2f(scores[n][i] - base);
        sums.sum[row] += scores[n][i];
      }
#pragma unroll
    for (int32_t d = 0; d < kDim / 8; ++d)
#pragma unroll
      for (int32_t i = 2 * row; i < 2 * row + 2; ++i) sums.out[d][i] *= shrink;
  }
  const uint32_t weights[4] = {pair<T>(scores[0][0], scores[0][1]), pair<T>(scores[0][2], scores[0][3]),
                               pair<T>(scores[1][0], scores[1][1]), pair<T>(scores[1][2], scores[1][3])};
  multiply_values<T, kDim>(weights, stage, sums);
}

// Query row and head of a tile's row; row < 0: none.
struct Row {
  int32_t row, head;
};
__device__ Row row_at(const Decode& d, const Part& part, int32_t index) {
  const int32_t row = part.sequence.first_row + index / d.group;
  return {row < part.sequence.last_row ? row : -1, part.kv_head * d.group + index % d.group};
}

template <int32_t kDim>
__device__ void load_queries(const Decode& d, const Part& part, uint32_t (&q)[kDim / 16][4]) {
  const ConstHeadRows& rows = d.args.q;
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(d, part, lane / 4 + half * 8);
    const auto* words = reinterpret_cast<const uint32_t*>(
        rows.data + (int64_t{max(row.row, 0)} * rows.row_stride + int64_t{row.head} * kDim) * 2);
#pragma unroll
    for (int32_t step = 0; step < kDim / 16; ++step) {
      q[step][half] = row.row < 0 ? 0 : words[step * 8 + lane % 4];
      q[step][2 + half] = row.row < 0 ? 0 : words[step * 8 + lane % 4 + 4];
    }
  }
}

__device__ Seen seen_by(const Decode& d, const Part& part) {
  Seen seen;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(d, part, threadIdx.x % kWarp / 4 + half * 8);
    const Span span = row.row < 0 ? Span{0, 0} : span_of(d.args, part.sequence, row.row);
    seen.first[half] = static_cast<int32_t>(max(span.first - part.sequence.start, int64_t{part.first}));
    seen.end[half] = static_cast<int32_t>(min(span.end - part.sequence.start, int64_t{part.end}));
  }
  return seen;
}

// A warp's tiles, ahead of their use: of each part the keys kTile * (warp, warp + kWarps, ...). Tile after tile goes to
// the next of the warp's stages, whatever part it is of.
template <int32_t kDim, int32_t kStages>
class Loader {
 public:
  static constexpr int32_t kStride = kWarps * kTile;

  __device__ Loader(const Walk& walk, uint32_t stages) : walk_(walk), stages_(stages) {
    next_part();
    for (int32_t i = 0; i < kStages - 1; ++i) load_next();
  }

  // Waits for the oldest tile that was not taken yet and begins to load another. The tile taken before is given up.
  __device__ uint32_t take() {
    wait_for_copies<kStages - 2>();
    __syncwarp();  // every lane's copies are there, and every lane has done with the stage that comes next
    load_next();
    const uint32_t tile = stages_ + taken_ * kStageBytes<kDim>;
    taken_ = taken_ + 1 == kStages ? 0 : taken_ + 1;
    return tile;
  }

 private:
  // The slots of two tiles at once, a half of the warp each: from `key` on, -1 past the part's end.
  __device__ int32_t look_up_two(int32_t key) const {
    const int32_t lane = threadIdx.x % kWarp;
    return look_up(walk_.args.keys, part_, key + lane / kTile * kStride + lane % kTile);
  }

  // The next part in which the warp has a tile.
  __device__ void next_part() {
    const int32_t warp = threadIdx.x / kWarp;
    has_tile_ = false;
    while (!has_tile_ && !walk_.over()) {
      part_ = walk_.next();
      key_ = part_.first + warp * kTile;
      has_tile_ = key_ < part_.end;
    }
    second_ = false;
    if (!has_tile_) return;
    slots_ = look_up_two(key_);
    next_slots_ = look_up_two(key_ + 2 * kStride);
  }

  // Table entries are asked for at least two tiles before they are needed: they may come from far away.
  __device__ void next_tile() {
    key_ += kStride;
    if (key_ >= part_.end) return next_part();
    if (second_) {
      slots_ = next_slots_;
      next_slots_ = look_up_two(key_ + 2 * kStride);
    }
    second_ = !second_;
  }

  __device__ void load_next() {
    if (has_tile_) {
      load_tile<kDim>(walk_.args, part_, __shfl_sync(~0u, slots_, threadIdx.x % kTile + (second_ ? kTile : 0)),
                      stages_ + loaded_ * kStageBytes<kDim>);
      next_tile();
    }
    loaded_ = loaded_ + 1 == kStages ? 0 : loaded_ + 1;
    commit_copies();  // also when there is nothing: groups are counted
  }

  Walk walk_;
  Part part_;
  uint32_t stages_;
  int32_t key_, slots_, next_slots_;
  bool has_tile_, second_;  // second_: the tile's slots are those of the warp's second half
  int32_t loaded_ = 0, taken_ = 0;
};

template <class T, int32_t kDim, class TileLoader>
__device__ void fold_part(const Decode& d, const Part& part, TileLoader& loader, Sums<kDim>& sums) {
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(d, part, q);
  const Seen seen = seen_by(d, part);
  for (int32_t key = part.first + static_cast<int32_t>(threadIdx.x) / kWarp * kTile; key < part.end;
       key += TileLoader::kStride)
    fold_tile<T, kDim>(d.args, q, seen, key, loader.take(), sums);
}

// --- the warps of a block together

struct Meeting {
  float top[kWarps][kRows], sum[kWarps][kRows];
  bool is_last;
};

// Into row-major f32 in shared memory: out[row][column], with the row's top and sum in `meeting` of warp 0. out has
// room for a result of each warp.
template <int32_t kDim>
__device__ void meet(const Decode& d, Sums<kDim>& sums, float* out, Meeting& meeting, int32_t rows) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const float sum = quad_sum(sums.sum[half]);
    if (lane % 4 == 0) {
      meeting.top[warp][lane / 4 + half * 8] = sums.top[half];
      meeting.sum[warp][lane / 4 + half * 8] = sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = lane / 4 + half * 8;
    float top = -INFINITY;
    for (int32_t w = 0; w < kWarps; ++w) top = fmaxf(top, meeting.top[w][row]);
    const float share = top == -INFINITY ? 0 : exp2f(sums.top[half] - top);
    if (row >= rows) continue;
#pragma unroll
    for (int32_t n = 0; n < kDim / 8; ++n) {
      float2 both = {sums.out[n][2 * half] * share, sums.out[n][2 * half + 1] * share};
      reinterpret_cast<float2*>(out + warp * d.rows * kDim)[(row * kDim + n * 8 + lane % 4 * 2) / 2] = both;
    }
  }
  float top = -INFINITY, sum = 0;  // of row threadIdx.x
  if (threadIdx.x < kRows) {
    for (int32_t w = 0; w < kWarps; ++w) top = fmaxf(top, meeting.top[w][threadIdx.x]);
    for (int32_t w = 0; w < kWarps && top != -INFINITY; ++w)
      sum += meeting.sum[w][threadIdx.x] * exp2f(meeting.top[w][threadIdx.x] - top);
  }
  __syncthreads();
  if (threadIdx.x < kRows) {
    meeting.top[0][threadIdx.x] = top;
    meeting.sum[0][threadIdx.x] = sum;
  }
  for (int32_t i = threadIdx.x; i < rows * kDim; i += kThreads) {
    float total = 0;
    for (int32_t w = 0; w < kWarps; ++w) total += out[w * d.rows * kDim + i];
    out[i] = total;  // only this thread reads or writes element i of warp 0
  }
  __syncthreads();
}

// out: [rows, dim] relative to the rows' tops, which are powers of two.
template <int32_t kDim>
__device__ void write_rows(const Decode& d, const Part& part, const float* out, const float* tops, const float* sums,
                           int32_t rows) {
  const AttendArgs& args = d.args;
  for (int32_t i = threadIdx.x; i < rows * kDim; i += kThreads) {
    const Row row = row_at(d, part, i / kDim);
    if (row.row < 0) continue;
    const float top = tops[i / kDim] / kLog2e, sum = sums[i / kDim];
    const float factor = factor_of(top, sum, args.sinks ? args.sinks[row.head] : -INFINITY, args.kv.value_scale);
    const int64_t at = row.row * args.out.row_stride + int64_t{row.head} * kDim + i % kDim;
    store(args.out.type, args.out.data, at, top == -INFINITY ? 0 : out[i] * factor);
    if (args.lse && i % kDim == 0)
      args.lse[row.head * args.q.rows + row.row] = top == -INFINITY ? -INFINITY : top + logf(sum);
  }
}

// --- parts of several blocks

template <int32_t kDim>
__device__ void leave_part(const Decode& d, int64_t slot, const float* out, const Meeting& meeting, int32_t rows) {
  for (int32_t i = threadIdx.x; i < rows * kDim; i += kThreads) __stcg(d.split_out + slot * kRows * kDim + i, out[i]);
  if (threadIdx.x < rows) {
    __stcg(d.split_top + slot * kRows + threadIdx.x, meeting.top[0][threadIdx.x]);
    __stcg(d.split_sum + slot * kRows + threadIdx.x, meeting.sum[0][threadIdx.x]);
  }
}

// Whether this block's part is the last of `parts` to arrive. The count wraps: the next layer finds it at zero.
__device__ bool arrive_last(int32_t* arrivals, int32_t parts, Meeting& meeting) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    meeting.is_last = atomicInc(reinterpret_cast<unsigned*>(arrivals), static_cast<unsigned>(parts - 1)) ==
                      static_cast<unsigned>(parts - 1);
  __syncthreads();
  if (meeting.is_last) __threadfence();
  return meeting.is_last;
}

// A part's place in the workspace: a block leaves at most two, where its run begins and where it ends.
__device__ int64_t slot_of_part(const Runs& runs, int32_t run, const Part& part, int32_t kv_heads) {
  return 2 * (int64_t{run} * kv_heads + part.kv_head) + (runs.begin(run) < part.first_unit ? 1 : 0);
}

// Where the parts of one sequence and kv head lie.
struct Parts {
  int64_t first_slot, second_slot;  // from the second on they follow each other at the same distance
  int32_t distance, count;
  __device__ int64_t slot(int32_t part) const {
    return part == 0 ? first_slot : second_slot + int64_t{part - 1} * distance;
  }
};

// What merging needs of shared memory, where the warps met.
template <int32_t kDim>
struct MergeMemory {
  float* out;     // [rows, kDim]
  float* shares;  // [parts, kRows]
  __device__ MergeMemory(float* memory, int32_t rows) : out(memory), shares(memory + rows * kDim) {}
  static constexpr size_t bytes(int32_t rows, int32_t parts) { return (rows * kDim + parts * kRows) * sizeof(float); }
};

__device__ void load_shares(const Decode& d, const Parts& parts, float* shares, Meeting& meeting, int32_t rows) {
  for (int32_t i = threadIdx.x; i < parts.count * kRows; i += kThreads)
    if (i % kRows < rows) shares[i] = __ldcg(d.split_top + parts.slot(i / kRows) * kRows + i % kRows);
  __syncthreads();
  if (threadIdx.x < rows) {
    float top = -INFINITY;
    for (int32_t p = 0; p < parts.count; ++p) top = fmaxf(top, shares[p * kRows + threadIdx.x]);
    meeting.top[0][threadIdx.x] = top;
  }
  __syncthreads();
  const int32_t lane = threadIdx.x % kWarp;
  for (int32_t row = threadIdx.x / kWarp; row < rows; row += kWarps) {
    const float top = meeting.top[0][row];
    float sum = 0;
    for (int32_t p = lane; p < parts.count; p += kWarp) {
      float& share = shares[p * kRows + row];
      share = top == -INFINITY ? 0 : exp2f(share - top);
      sum += share * __ldcg(d.split_sum + parts.slot(p) * kRows + row);
    }
    for (int32_t step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) meeting.sum[0][row] = sum;
  }
  __syncthreads();
}

// A thread takes four columns at a time. Of the first parts they are on their way before the parts' shares are known.
template <int32_t kDim>
__device__ void merge_parts(const Decode& d, const Parts& parts, float* memory, Meeting& meeting, int32_t rows) {
  constexpr int32_t kAhead = 8;
  const MergeMemory<kDim> at(memory, d.rows);
  const int32_t quads = rows * kDim / 4;
  const auto load = [&](int32_t part, int32_t quad) {
    return __ldcg(reinterpret_cast<const float4*>(d.split_out + parts.slot(part) * kRows * kDim) + quad);
  };
  float4 ahead[kAhead];
#pragma unroll
  for (int32_t p = 0; p < kAhead; ++p)
    if (p < parts.count && static_cast<int32_t>(threadIdx.x) < quads) ahead[p] = load(p, threadIdx.x);
  load_shares(d, parts, at.shares, meeting, rows);
  for (int32_t quad = threadIdx.x; quad < quads; quad += kThreads) {
    const bool is_first = quad == static_cast<int32_t>(threadIdx.x);
    float4 total = {0, 0, 0, 0};
    const auto add = [&](const float4& part, int32_t p) {
      const float share = at.shares[p * kRows + quad * 4 / kDim];
      total = {total.x + part.x * share, total.y + part.y * share, total.z + part.z * share, total.w + part.w * share};
    };
#pragma unroll
    for (int32_t p = 0; p < kAhead; ++p)
      if (p < parts.count) add(is_first ? ahead[p] : load(p, quad), p);
#pragma unroll 8
    for (int32_t p = kAhead; p < parts.count; ++p) add(load(p, quad), p);
    reinterpret_cast<float4*>(at.out)[quad] = total;
  }
  __syncthreads();
}

// --- the kernel

template <class T, int32_t kDim, class TileLoader>
__device__ void attend_part(const Decode& d, const Part& part, const Runs& runs, int32_t run, TileLoader& loader,
                            float* out, Meeting& meeting) {
  const int32_t rows = (part.sequence.last_row - part.sequence.first_row) * d.group, kv_heads = d.args.kv.kv_heads;
  Sums<kDim> sums;
  fold_part<T, kDim>(d, part, loader, sums);
  meet<kDim>(d, sums, out, meeting, rows);
  const int32_t first_run = runs.run_of(part.first_unit), last_run = runs.run_of(part.first_unit + part.units - 1);
  if (first_run != last_run) {
    const Parts parts{.first_slot = slot_of_part(runs, first_run, part, kv_heads),
                      .second_slot = slot_of_part(runs, first_run + 1, part, kv_heads),
                      .distance = 2 * kv_heads,
                      .count = last_run - first_run + 1};
    leave_part<kDim>(d, parts.slot(run - first_run), out, meeting, rows);
    if (!arrive_last(d.arrivals + int64_t{part.b} * kv_heads + part.kv_head, parts.count, meeting)) return;
    merge_parts<kDim>(d, parts, out, meeting, rows);
  }
  write_rows<kDim>(d, part, out, meeting.top[0], meeting.sum[0], rows);
  __syncthreads();  // the memory is the next part's
}

// Rows of sequences without keys, and rows past the live ones.
__device__ void write_empty_rows(const Decode& d, int32_t live, const int32_t* prefix) {
  const AttendArgs& args = d.args;
  const int32_t live_rows = live ? args.keys.cu_q[live] : 0;
  const auto write_empty = [&](int32_t first, int32_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int32_t i = threadIdx.x; i < args.out.heads * args.out.dim; i += kThreads)
        store(args.out.type, args.out.data, row * args.out.row_stride + i, 0);
      for (int32_t head = threadIdx.x; args.lse && head < args.q.heads; head += kThreads)
        args.lse[head * args.q.rows + row] = -INFINITY;
    }
  };
  for (int32_t b = blockIdx.x; b < live; b += gridDim.x)
    if (prefix[b] == prefix[b + 1]) write_empty(args.keys.cu_q[b], args.keys.cu_q[b + 1]);
  for (int32_t row = live_rows + blockIdx.x; row < args.q.rows; row += gridDim.x) write_empty(row, row + 1);
}

// Shared memory: the warps' stages, where they meet or a block merges, and the units before each sequence.
template <int32_t kDim, int32_t kStages>
constexpr size_t kStagesBytes = kWarps* kStages* kStageBytes<kDim>;

template <int32_t kDim>
constexpr size_t meeting_bytes(int32_t rows, int32_t parts) {
  return std::max(kWarps * rows * kDim * sizeof(float), MergeMemory<kDim>::bytes(rows, parts));
}

template <class T, int32_t kDim, int32_t kStages>
__global__ void __launch_bounds__(kThreads, 1) decode_kernel(const __grid_constant__ Decode d) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Meeting meeting;
  auto* const out = reinterpret_cast<float*>(memory + kStagesBytes<kDim, kStages>);
  auto* const prefix =
      reinterpret_cast<int32_t*>(memory + kStagesBytes<kDim, kStages> + d.meeting_bytes);  // [live + 1]
  const AttendArgs& args = d.args;
  const int32_t live = *args.keys.live;
  count_units(args, live, prefix);
  const Runs runs(prefix[live], static_cast<int32_t>(gridDim.x) / args.kv.kv_heads);
  const int32_t run = static_cast<int32_t>(blockIdx.x) / args.kv.kv_heads;
  if (run < runs.count) {
    Walk walk(args, prefix, live, runs, run);
    const int32_t warp = threadIdx.x / kWarp;
    Loader<kDim, kStages> loader(walk, shared_address(memory + warp * kStages * kStageBytes<kDim>));
    while (!walk.over()) attend_part<T, kDim>(d, walk.next(), runs, run, loader, out, meeting);
  }
  write_empty_rows(d, live, prefix);
}

int32_t attribute(cudaDeviceAttr which) {
  int32_t value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, 0), "an attribute of the device is not known");
  return value;
}

// False: it takes more shared memory than there is.
template <class T, int32_t kDim, int32_t kStages>
bool launch(Decode d, cudaStream_t stream) {
  const int32_t kv_heads = d.args.kv.kv_heads;
  const int32_t processors = std::min<int32_t>(attribute(cudaDevAttrMultiProcessorCount), kMostSplitBlocks);
  const int32_t blocks = std::max(1, processors / kv_heads) * kv_heads;
  d.meeting_bytes = meeting_bytes<kDim>(d.rows, blocks / kv_heads);
  const size_t shared =
      kStagesBytes<kDim, kStages> + d.meeting_bytes + (static_cast<size_t>(d.batch) + 1) * sizeof(int32_t);
  if (shared + sizeof(Meeting) + 256 > static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)))
    return false;
  const auto kernel = decode_kernel<T, kDim, kStages>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
             "attention needs ", shared, " bytes of shared memory");
  kernel<<<blocks, kThreads, shared, stream>>>(d);
  check_cuda(cudaGetLastError(), "attention was not launched");
  return true;
}

// As many bytes under way as the rows leave room for.
template <class T>
bool launch(const Decode& d, cudaStream_t stream) {
  if (d.args.kv.key_dim == 64) return launch<T, 64, 5>(d, stream) || launch<T, 64, 2>(d, stream);
  return launch<T, 128, 3>(d, stream) || launch<T, 128, 2>(d, stream);
}

// 16-byte pieces are copied, so rows must begin at multiples of 16 bytes; pages of keys and values do, at these dims.
bool is_aligned(const AttendArgs& args) {
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  return address(args.kv.keys) % 16 == 0 && address(args.kv.values) % 16 == 0 && address(args.q.data) % 4 == 0 &&
         args.kv.key_stride % 8 == 0 && args.kv.value_stride % 8 == 0 && args.q.row_stride % 2 == 0;
}

bool fits(const AttendArgs& args) {
  const kv::LayerKv& kv = args.kv;
  const int32_t group = args.q.heads / kv.kv_heads, queries = args.keys.most_queries;
  return (kv.type == Dtype::bf16 || kv.type == Dtype::f16) && args.q.type == kv.type && !kv.latent() &&
         kv.key_dim == kv.value_dim && (kv.key_dim == 64 || kv.key_dim == 128) && queries > 0 &&
         queries * group <= kRows && kv.kv_heads <= kMostSplitBlocks && !args.keys.branch_lengths &&
         args.keys.set != Set::local && is_aligned(args);
}

}  // namespace

bool decode(const AttendArgs& args, Exec& exec) {
  if (!fits(args)) return false;
  const MetadataArena& arena = *args.arena;
  const Decode d{.args = args,
                 .group = args.q.heads / args.kv.kv_heads,
                 .batch = arena.limits().batch,
                 .rows = args.keys.most_queries * (args.q.heads / args.kv.kv_heads),
                 .split_out = arena.floats(Buf::split_partial_out),
                 .split_top = arena.floats(Buf::split_partial_top),
                 .split_sum = arena.floats(Buf::split_partial_sum),
                 .arrivals = arena.counts(Buf::split_arrivals),
                 .meeting_bytes = 0};
  const cudaStream_t stream = stream_of(exec);
  return args.kv.type == Dtype::bf16 ? launch<__nv_bfloat16>(d, stream) : launch<__half>(d, stream);
}

}  // namespace quire::attn::cuda
