// Views: where values lie, never who owns them.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace quire {

// [rows, heads, dim], the last dimension dense; queries, outputs, and new keys and values.
template <class Byte>
struct BasicHeadRows {
  Byte* data;
  Dtype type;
  int64_t rows;
  int32_t heads;
  int32_t dim;
  int64_t row_stride;  // in elements, from one row to the next; heads * dim when dense

  constexpr Byte* at(int64_t row, int32_t head) const {
    return data + (row * row_stride + static_cast<int64_t>(head) * dim) * size_of(type);
  }
};
using HeadRows = BasicHeadRows<std::byte>;
using ConstHeadRows = BasicHeadRows<const std::byte>;

// [rows, dim], the last dimension dense.
template <class T>
struct Rows {
  T* data;
  int64_t rows;
  int64_t dim;
  int64_t stride;  // in elements, from one row to the next; dim when dense

  constexpr T* row(int64_t index) const { return data + index * stride; }
  // A template, because compilers of device code warn of a conversion of Rows<const T> to itself.
  template <std::same_as<const T> U>
  operator Rows<U>() const {
    return {data, rows, dim, stride};
  }
};

}  // namespace quire
