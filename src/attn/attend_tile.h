// The arrays of one tile while its keys are walked, and how they lie in a thread's scratch: measured and cut by one
// function, so that the two cannot drift apart. Internal linkage for the reason attend_walk.h gives.
#pragma once
#include <cstddef>
#include <cstdint>

#include "attn/cpu_choice.h"

namespace quire::attn::cpu {
namespace {

// The thread's scratch, cut into the tile's arrays. Rows are padded by 16 so that a
// tile of rows may start anywhere.
struct TileState {
  std::byte* q;    // [rows, key dim] in the engine's format
  float* s;        // [rows, kBlock] scores, then probabilities
  float* o;        // [rows, value dim] sum of p v in the current range; in the engine's order until finish_range()
  float* m;        // [rows] maximum in the current range, in log2 units
  float* l;        // [rows, 16] sum of p, by lane
  float* total_o;  // the ranges before
  float* total_m;
  float* total_l;   // [rows]
  float* factor;    // [rows] what the block's new maximum makes of the sums so far
  int32_t* low;     // [rows] first visible key position
  int32_t* high;    // [rows] one past the last
  std::byte* keys;  // the engine's packed block of keys
  std::byte* values;
  std::byte* stage;  // [16, value dim] floats; AMX: a copy of the last rows' results
  int32_t rows;
  int32_t key_dim;
  int32_t value_dim;
  float score_scale;  // products times this: scores in log2 units; with softcap, what tanh takes
  float softcap;
};

// Hands out arrays of a block of memory, each on its own cache lines; without memory it only counts.
struct Carver {
  std::byte* memory;
  size_t used = 0;

  template <class T>
  T* take(int64_t count) {
    T* taken = memory ? reinterpret_cast<T*>(memory + used) : nullptr;
    used += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return taken;
  }
};

// Returns how many bytes the arrays take; scratch null: only that.
inline size_t carve(TileState& t, std::byte* scratch, int32_t rows, int32_t key_dim, int32_t value_dim) {
  const int32_t padded = rows + 16;
  Carver carver{scratch};
  t.q = carver.take<std::byte>(int64_t{4} * padded * key_dim);
  t.s = carver.take<float>(int64_t{padded} * kBlock);
  t.o = carver.take<float>(int64_t{padded} * value_dim);
  t.total_o = carver.take<float>(int64_t{padded} * value_dim);
  t.m = carver.take<float>(padded);
  t.l = carver.take<float>(int64_t{padded} * 16);
  t.total_m = carver.take<float>(padded);
  t.total_l = carver.take<float>(padded);
  t.factor = carver.take<float>(padded);
  t.low = carver.take<int32_t>(padded);
  t.high = carver.take<int32_t>(padded);
  t.keys = carver.take<std::byte>(int64_t{4} * kBlock * key_dim);
  t.values = carver.take<std::byte>(int64_t{4} * kBlock * value_dim);
  t.stage = carver.take<std::byte>(int64_t{4} * 16 * value_dim);
  t.rows = rows;
  t.key_dim = key_dim;
  t.value_dim = value_dim;
  return carver.used;
}

}  // namespace
}  // namespace quire::attn::cpu
