#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "attn/sequence.h"
#include "attn/step_fetch_cuda.cuh"
#include "attn/write_decode_cuda.h"
#include "base/cuda_launch.cuh"

namespace quire::attn::cuda {
namespace {

constexpr int32_t kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int32_t kMostRequests = 1024;
constexpr int32_t kPieceWords = 4, kPiecesAtOnce = 4;

// Arrays of a step: a word for each request, but for the numbers.
enum Array : int32_t { numbers, rows, lengths, input_ids, positions, slot_mapping, wanted_rows, kArrays };
static_assert(kArrays <= kWarps, "an array is one warp's");

struct WriteDecode {
  StepInputs in;
  SequenceTarget to;
  int32_t* arrivals;  // [kMostSplitBlocks] of the splits of tiles
  int32_t* next_tile;
  int32_t stride;           // words of an array in shared memory
  int32_t count[kArrays];   // of words that may be there
  const void* at[kArrays];  // the device's
  int32_t added_keys;
};

__device__ int32_t thread() { return static_cast<int32_t>(threadIdx.x); }

// A warp asks for its array, and nobody else does: two that ask for one line of the host's memory go over the bus one
// after the other. All is asked for before the first word has come, also what the step turns out not to have.
__device__ void fetch(const WriteDecode& w, const PinnedCopy& copy, uint32_t* words) {
  const int32_t array = thread() / kWarp, lane = thread() % kWarp;
  if (array >= kArrays) return;
  const auto* const from = reinterpret_cast<const uint4*>(copy.place(w.at[array]));
  auto* const to = reinterpret_cast<uint4*>(words + array * w.stride);
  const int32_t pieces = (w.count[array] + kPieceWords - 1) / kPieceWords;
  for (int32_t first = lane; first < pieces; first += kPiecesAtOnce * kWarp) {
    uint4 piece[kPiecesAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kPiecesAtOnce; ++i)
      if (first + i * kWarp < pieces) piece[i] = __ldcv(from + first + i * kWarp);
#pragma unroll
    for (int32_t i = 0; i < kPiecesAtOnce; ++i)
      if (first + i * kWarp < pieces) to[first + i * kWarp] = piece[i];
  }
}

template <class T>
__device__ void put(const T* to, int32_t i, uint32_t word) {
  static_assert(sizeof(T) == sizeof(word));
  reinterpret_cast<uint32_t*>(const_cast<T*>(to))[i] = word;
}

// What has been fetched.
struct Fetched {
  const uint32_t* words;
  int32_t stride;

  __device__ uint32_t word(Array array, int32_t i) const { return words[array * stride + i]; }
  __device__ int32_t number(const WriteDecode& w, const int32_t* on_device) const {
    return static_cast<int32_t>(
        word(numbers, static_cast<int32_t>(on_device - static_cast<const int32_t*>(w.at[numbers]))));
  }
};

__device__ void write_request(const WriteDecode& w, const Fetched& fetched, int32_t b) {
  const uint32_t row = fetched.word(rows, b), length = fetched.word(lengths, b);
  put(w.in.rows, b, row);
  put(w.in.lengths, b, length);
  put(w.to.rows, b, row);
  w.to.lengths[b] = static_cast<int32_t>(length) + w.added_keys;
  w.to.first_page[b] = 0;
  w.to.cu_q[b] = b;
  if (w.count[input_ids] == 0) return;
  const auto token = static_cast<int32_t>(fetched.word(input_ids, b));
  put(w.in.input_ids, b, static_cast<uint32_t>(known_token(w.in.source, token)));
  put(w.in.positions, b, fetched.word(positions, b));
  put(w.in.slot_mapping, b, fetched.word(slot_mapping, b));
}

__device__ void write_all(const WriteDecode& w, const Fetched& fetched) {
  const int32_t live = fetched.number(w, w.in.live);
  for (int32_t b = thread(); b < live; b += kThreads) write_request(w, fetched, b);
  const int32_t wanted = min(fetched.number(w, w.in.wanted_count), w.count[wanted_rows]);
  for (int32_t i = thread(); i < wanted; i += kThreads) put(w.in.wanted_rows, i, fetched.word(wanted_rows, i));
  if (thread() < kStepNumbers)
    put(static_cast<const uint32_t*>(w.at[numbers]), thread(), fetched.word(numbers, thread()));
  if (thread() != 0) return;
  *w.to.live_count = live;
  w.to.cu_q[live] = live;
}

__device__ void clear_counters(const WriteDecode& w) {
  if (thread() == 0) *w.next_tile = 0;
  for (int32_t i = thread(); i < kMostSplitBlocks; i += kThreads) w.arrivals[i] = 0;
}

__global__ void __launch_bounds__(kThreads) write_decode_kernel(const __grid_constant__ WriteDecode w) {
  extern __shared__ uint4 shared[];
  auto* const words = reinterpret_cast<uint32_t*>(shared);
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  const StepTurn turn = turn_of(w.in.source);
  if (thread() == kThreads - 1) say_what_was_fetched(w.in.source, turn);
  if (thread() == kThreads - kWarp) begin_time(w.in.source);
  fetch(w, PinnedCopy(w.in.source, turn), words);
  clear_counters(w);
  __syncthreads();
  if (thread() == kThreads - 1) end_turn(w.in.source, turn);
  write_all(w, {words, w.stride});
}

}  // namespace

bool can_write_decode(const StepShape& shape, const StepInputs& inputs) {
  return inputs.source.count > 0 && shape.mode == Mode::decode && shape.form == Form::in_place && !shape.local &&
         !shape.encoder && !shape.window_table && shape.captured <= kMostRequests;
}

void write_decode(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, Exec& exec) {
  const Limits& limits = arena.limits();
  const int32_t of_model = limits.query_rows > 0 ? shape.captured : 0;
  const WriteDecode w{.in = inputs,
                      .to = sequence_target(arena, sequence_set(main_set(shape.mode)), main_page_table(shape.mode)),
                      .arrivals = arena.counts(Buf::split_arrivals),
                      .next_tile = arena.counts(Buf::split_next_tile),
                      .stride = (std::max(shape.captured, kStepNumbers) + kPieceWords - 1) / kPieceWords * kPieceWords,
                      .count = {kStepNumbers, shape.captured, shape.captured, of_model, of_model, of_model,
                                std::min(limits.wanted_rows, of_model)},
                      .at = {inputs.source.device, inputs.rows, inputs.lengths, inputs.input_ids, inputs.positions,
                             inputs.slot_mapping, inputs.wanted_rows},
                      .added_keys = added_keys(shape.mode, limits)};
  const size_t shared = static_cast<size_t>(kArrays * w.stride) * sizeof(uint32_t);
  quire::cuda::launch_after(write_decode_kernel, dim3(1), kThreads, shared, quire::cuda::stream_of(exec),
                            "the writer of decode steps", w);
}

}  // namespace quire::attn::cuda
