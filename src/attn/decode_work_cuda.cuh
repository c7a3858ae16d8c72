// How decode's work is cut: one line of keys for each sequence, the lines one after the other, equal runs of units.
//
//   line    the sequence's keys in pages from the first that any row sees, then most_branch_tokens places for the
//           branch of each of its query rows; a place is seen by its own row alone and may hold no token
//   unit    kUnit keys of a line, by which the work is cut
//   run     units of one block, for one kv head
//   part    what a run has of one sequence
//
// Every block makes the cut for itself, from the step's lengths.
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/decode_tile_cuda.cuh"
#include "attn/runs_cuda.cuh"

namespace quire::attn::cuda {

constexpr int32_t kUnit = 64;

// Of the step's metadata. They may be read while the kernel before still runs, which is too early to trust a
// processor's own cache: it may have what an earlier step wrote.
template <class T>
__device__ T read(const T* of_step) {
  return __ldcg(of_step);
}

// What is known of a sequence, in shared memory. One more follows the last sequence's and ends it.
struct Line {
  int32_t units_before;  // of one kv head in the sequences before
  int32_t first;         // keys before it are in no row's window
  int32_t length;        // keys in pages
  int32_t first_row;     // of its queries; they end where the next line's begin
  int32_t table_row, first_page;
};
static_assert(sizeof(Line) == DecodeSizes::kLineBytes);

// Exact, because pages that left the window may be gone.
__device__ inline int32_t first_seen(const AttendArgs& args, const Line& line, int32_t last_row) {
  const KeyView& keys = args.keys;
  if (args.window < 0 || (!keys.causal && !keys.branch_lengths)) return 0;
  int32_t end = line.length - (last_row - 1 - line.first_row);  // of the row that ends first
  if (keys.branch_lengths) {
    int32_t shortest = read(keys.branch_lengths + line.first_row);
    for (int32_t row = line.first_row + 1; row < last_row; ++row)
      shortest = min(shortest, read(keys.branch_lengths + row));
    end = line.length + shortest;
  }
  return min(max(0, end - 1 - args.window), line.length);
}

// What the metadata say of live sequence b.
__device__ inline Line load_line(const AttendArgs& args, int32_t b, int32_t last_row) {
  const KeyView& keys = args.keys;
  Line line{.units_before = 0,
            .first = 0,
            .length = read(keys.lengths + b),
            .first_row = read(keys.cu_q + b),
            .table_row = keys.rows ? read(&keys.rows[b].value) : b,
            .first_page = keys.first_page ? read(keys.first_page + b) : 0};
  line.first = first_seen(args, line, last_row);
  return line;
}

__device__ inline int32_t units_of(const KeyView& keys, const Line& line, int32_t last_row) {
  const int32_t queries = last_row - line.first_row;
  if (queries == 0) return 0;
  return (line.length - line.first + queries * keys.most_branch_tokens + kUnit - 1) / kUnit;
}

// lines: [live + 1]. Returns the live count. Nothing is read past it: nobody wrote that.
template <int32_t kWarps>
__device__ int32_t write_lines(const AttendArgs& args, Line* lines) {
  constexpr int32_t kThreads = kWarps * kWarp;
  __shared__ int32_t sums[kWarps];
  const KeyView& keys = args.keys;
  const int32_t live = read(keys.live);
  int32_t carry = 0;
  for (int32_t first = 0; first <= live; first += kThreads) {
    const int32_t b = first + static_cast<int32_t>(threadIdx.x);
    Line line{};
    int32_t units = 0, total;
    if (b < live) {
      const int32_t last_row = read(keys.cu_q + b + 1);
      line = load_line(args, b, last_row);
      units = units_of(keys, line, last_row);
      if (b + 1 == live) lines[live].first_row = last_row;
    }
    line.units_before = carry + sum_before(units, sums, total);
    if (b < live) lines[b] = line;
    if (b == live) lines[live].units_before = line.units_before;
    if (b == live && live == 0) lines[live].first_row = 0;
    carry += total;
    __syncthreads();
  }
  return live;
}

// Where a live sequence's pages begin in their table.
__device__ inline const PageId* pages_of(const KeyView& keys, const Line& line) {
  return keys.pages + line.table_row * keys.stride + line.first_page;
}

// The last of the lines that begin at or before the unit.
__device__ inline int32_t line_of(const Line* lines, int32_t live, int32_t unit) {
  return last_that(live, [&](int32_t b) { return lines[b].units_before <= unit; });
}

// Keys are counted along the sequence's line, the first in its pages being 0.
struct Part {
  const PageId* pages;
  int32_t length;               // keys in pages; from there on the branches
  int32_t first_row, last_row;  // query rows first_row .. last_row - 1
  int32_t first, end;           // keys of the part
  int32_t b, kv_head;
  int32_t parts;               // of the whole sequence; of these, if there are more than one and it was asked for:
  int32_t number, first_slot;  // which this is; the place in the workspace of the block that has the first

  // A block leaves at most two parts, one of a sequence that earlier blocks have the begin of, one of a sequence that
  // later blocks have the rest of.
  __device__ int32_t slot(int32_t index, int32_t kv_heads) const {
    return first_slot + 2 * kv_heads * index + (index == 0 ? 1 : 0);
  }
  __device__ Sequence sequence() const {
    return {.pages = pages, .start = 0, .end = length, .first_row = first_row, .last_row = last_row};
  }
};

// The parts of a run, one after the other. Kept in a warp's shared memory, not in registers: what it says is seldom
// asked for. The whole warp calls.
struct Walk {
  Part part;          // the one that next() came to
  int32_t unit, end;  // what is left of the run
  int32_t run, kv_head;
  int32_t b;  // at or before the sequence of `unit`

  __device__ void begin(const Line* lines, int32_t live, const Runs& runs, int32_t kv_heads) {
    if (threadIdx.x % kWarp == 0) {
      run = static_cast<int32_t>(blockIdx.x) / kv_heads;
      kv_head = static_cast<int32_t>(blockIdx.x) % kv_heads;
      unit = runs.begin(run);
      end = runs.begin(run + 1);
      b = line_of(lines, live, unit);
    }
    __syncwarp();
  }

  __device__ void begin(const Walk& other) {
    if (threadIdx.x % kWarp == 0) *this = other;
    __syncwarp();
  }

  __device__ bool over() const { return unit >= end; }
  __device__ void next(const AttendArgs& args, const Line* lines) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) step(args, lines);
    __syncwarp();
  }
  // And which of its sequence's parts it is.
  __device__ void next(const AttendArgs& args, const Line* lines, const Runs& runs) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) {
      step(args, lines);
      number(args.kv.kv_heads, lines, runs);
    }
    __syncwarp();
  }

 private:
  __device__ void step(const AttendArgs& args, const Line* lines) {
    const KeyView& keys = args.keys;
    while (lines[b + 1].units_before <= unit) ++b;
    const Line line = lines[b];
    const int32_t last_row = lines[b + 1].first_row, units = lines[b + 1].units_before - line.units_before;
    const int32_t at = unit - line.units_before, count = min(end - unit, units - at);
    const int32_t line_end = line.length + (last_row - line.first_row) * keys.most_branch_tokens;
    unit += count;
    part = {.pages = pages_of(keys, line),
            .length = line.length,
            .first_row = line.first_row,
            .last_row = last_row,
            .first = line.first + at * kUnit,
            .end = min(line.first + (at + count) * kUnit, line_end),
            .b = b,
            .kv_head = kv_head,
            .parts = count == units ? 1 : 0,
            .number = 0,
            .first_slot = 0};
  }

  __device__ void number(int32_t kv_heads, const Line* lines, const Runs& runs) {
    if (part.parts == 1) return;
    const int32_t first_run = runs.run_of(lines[b].units_before), last_run = runs.run_of(lines[b + 1].units_before - 1);
    part.parts = last_run - first_run + 1;
    part.number = run - first_run;
    part.first_slot = 2 * (first_run * kv_heads + part.kv_head);
  }
};

// Slot of a key; -1: there is none, or it is past the part's end.
__device__ inline int32_t look_up(const KeyView& keys, const Part& part, int32_t key) {
  if (key >= part.end) return -1;
  const int32_t shift = keys.page_size.shift();
  if (key < part.length) return slot_in_page(read(&part.pages[key >> shift].value), shift, key);
  const int32_t place = key - part.length, token = place % keys.most_branch_tokens;
  const int64_t row = part.first_row + place / keys.most_branch_tokens;
  if (token >= read(keys.branch_lengths + row)) return -1;
  return read(&keys.branch_slots[row * keys.branch_stride + token].value);
}

}  // namespace quire::attn::cuda
