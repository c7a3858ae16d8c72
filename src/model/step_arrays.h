// The rows of a step between two operations of a model: where they lie, and in which type attention reads queries.
#pragma once
#include <cstdint>

#include "base/buffer.h"
#include "base/tensor.h"
#include "base/types.h"

namespace quire::model {

// [count] at a fixed address, never filled.
template <class T>
class Array {
 public:
  Array(int64_t count, Place place) : memory_(static_cast<size_t>(count) * sizeof(T), place) {}
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  const Buffer& memory() const { return memory_; }

 private:
  Buffer memory_;
};

inline Rows<float> dense_rows(float* data, int64_t rows, int64_t dim) { return {data, rows, dim, dim}; }

// Queries in the keys' own narrow type let attention use dots of pairs. A CPU widens fp8 keys, so f32 loses nothing;
// the GPU's tensor cores take them beside bf16.
inline Dtype query_type_for(Dtype kv_type, Device device) {
  if (kv_type != Dtype::f8e4m3) return kv_type;
  return device == Device::cpu ? Dtype::f32 : Dtype::bf16;
}

}  // namespace quire::model
