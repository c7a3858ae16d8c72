// New rows into their slots, and slots into slots: a block takes one row of one array. Elements are converted as on the
// CPU, by the same functions on the same bits.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/cuda_call.h"
#include "kv/convert_bits.h"
#include "kv/store_cuda.h"

namespace quire::kv::cuda {
namespace {

using quire::cuda::check_cuda;
using quire::cuda::stream_of;

constexpr int32_t kThreads = 128;
constexpr int32_t kGroup = 8;  // elements that a thread takes at a time where addresses allow it

// --- elements of each type

template <Dtype kType>
using Bits =
    std::conditional_t<kType == Dtype::f32, float, std::conditional_t<kType == Dtype::f8e4m3, uint8_t, uint16_t>>;

template <Dtype kType>
__device__ float widened(Bits<kType> element) {
  if constexpr (kType == Dtype::bf16) return float_of_bf16(element);
  if constexpr (kType == Dtype::f16) return float_of_f16(element);
  if constexpr (kType == Dtype::f8e4m3) return float_of_f8e4m3(element);
  if constexpr (kType == Dtype::f32) return element;
}

template <Dtype kType>
__device__ Bits<kType> narrowed(float element, float scale) {
  if constexpr (kType == Dtype::bf16) return bf16_bits(element);
  if constexpr (kType == Dtype::f16) return f16_bits(element);
  if constexpr (kType == Dtype::f8e4m3) return f8e4m3_bits(__fdiv_rn(element, scale));
  if constexpr (kType == Dtype::f32) return element;
}

// --- rows

// One array's side of a call: keys or values.
struct Array {
  const std::byte* source;
  std::byte* target;
  Dtype from;
  int64_t source_stride, target_stride;  // bytes from one row, and from one slot, to the next
  int32_t elements;                      // of a row
  float scale;
  bool in_groups;
};

struct Store {
  Array keys, values;
  Dtype to;
  const TokenSlot* slots;
  const int32_t* live_rows;
};

template <class T, int32_t kCount>
struct alignas(std::min<size_t>(16, sizeof(T) * kCount)) Pack {
  T element[kCount];
};

template <Dtype kFrom, Dtype kTo, int32_t kCount>
__device__ void convert_packs(const Array& array, const std::byte* source, std::byte* target) {
  const auto* from = reinterpret_cast<const Pack<Bits<kFrom>, kCount>*>(source);
  auto* to = reinterpret_cast<Pack<Bits<kTo>, kCount>*>(target);
  for (int32_t i = threadIdx.x; i < array.elements / kCount; i += kThreads) {
    const Pack<Bits<kFrom>, kCount> loaded = from[i];
    Pack<Bits<kTo>, kCount> stored;
#pragma unroll
    for (int32_t k = 0; k < kCount; ++k)
      stored.element[k] = narrowed<kTo>(widened<kFrom>(loaded.element[k]), array.scale);
    to[i] = stored;
  }
}

template <class Word>
__device__ void copy_words(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof(Word)); i += kThreads)
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
}

template <Dtype kFrom, Dtype kTo>
__device__ void convert_row(const Array& array, const std::byte* source, std::byte* target) {
  if (kFrom == kTo && array.scale == 1) {  // the bits as they are, those of a signalling NaN too
    if (array.in_groups)
      copy_words<uint64_t>(target, source, array.elements * int64_t{sizeof(Bits<kTo>)});
    else
      copy_words<std::byte>(target, source, array.elements * int64_t{sizeof(Bits<kTo>)});
  } else if (array.in_groups) {
    convert_packs<kFrom, kTo, kGroup>(array, source, target);
  } else {
    convert_packs<kFrom, kTo, 1>(array, source, target);
  }
}

template <Dtype kTo>
__device__ void convert_to(const Array& array, const std::byte* source, std::byte* target) {
  switch (array.from) {
    case Dtype::f32:
      return convert_row<Dtype::f32, kTo>(array, source, target);
    case Dtype::bf16:
      return convert_row<Dtype::bf16, kTo>(array, source, target);
    case Dtype::f16:
      return convert_row<Dtype::f16, kTo>(array, source, target);
    case Dtype::f8e4m3:
      return convert_row<Dtype::f8e4m3, kTo>(array, source, target);
  }
}

// grid: rows, arrays
__global__ void __launch_bounds__(kThreads) store_kernel(const __grid_constant__ Store s) {
  const int64_t row = blockIdx.x;
  if (row >= *s.live_rows) return;
  const Array& array = blockIdx.y == 0 ? s.keys : s.values;
  const std::byte* source = array.source + row * array.source_stride;
  std::byte* target = array.target + s.slots[row].value * array.target_stride;
  switch (s.to) {
    case Dtype::f32:
      return convert_to<Dtype::f32>(array, source, target);
    case Dtype::bf16:
      return convert_to<Dtype::bf16>(array, source, target);
    case Dtype::f16:
      return convert_to<Dtype::f16>(array, source, target);
    case Dtype::f8e4m3:
      return convert_to<Dtype::f8e4m3>(array, source, target);
  }
}

bool is_aligned(const void* address, int64_t stride, int32_t element_bytes) {
  const auto align = static_cast<uint64_t>(std::min(16, kGroup * element_bytes));
  return reinterpret_cast<uintptr_t>(address) % align == 0 && static_cast<uint64_t>(stride) % align == 0;
}

Array array_of(const ConstHeadRows& rows, std::byte* target, int64_t stride, Dtype to, float scale) {
  const int64_t source_stride = rows.row_stride * size_of(rows.type), target_stride = stride * size_of(to);
  const int32_t elements = rows.heads * rows.dim;
  return {.source = rows.data,
          .target = target,
          .from = rows.type,
          .source_stride = source_stride,
          .target_stride = target_stride,
          .elements = elements,
          .scale = scale,
          .in_groups = elements % kGroup == 0 && is_aligned(rows.data, source_stride, size_of(rows.type)) &&
                       is_aligned(target, target_stride, size_of(to))};
}

// --- slots to slots

struct Move {
  SlotCopy copy;
  const TokenSlot* slots;
  std::byte* staging;  // [arrays, slots of the call, staging stride]
  int64_t staging_stride;
  bool into_staging;
};

// grid: slots of the call, arrays: keys of every layer, then values of every layer
__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ Move m) {
  const int32_t layer = blockIdx.y % m.copy.layers;
  const bool is_key = static_cast<int32_t>(blockIdx.y) < m.copy.layers;
  const int64_t bytes = is_key ? m.copy.key_bytes : m.copy.value_bytes;
  std::byte* stored =
      (is_key ? m.copy.keys : m.copy.values) + layer * m.copy.layer_bytes + m.slots[blockIdx.x].value * bytes;
  std::byte* staged = m.staging + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * m.staging_stride;
  std::byte* to = m.into_staging ? staged : stored;
  const std::byte* from = m.into_staging ? stored : staged;
  if (bytes % sizeof(uint4) == 0)  // arrays begin at multiples of 64
    copy_words<uint4>(to, from, bytes);
  else
    copy_words<std::byte>(to, from, bytes);
}

int32_t arrays_of(const SlotCopy& copy) { return copy.layers * (copy.value_bytes ? 2 : 1); }

int64_t staging_stride_of(const SlotCopy& copy) {
  constexpr int64_t kAlign = sizeof(uint4);
  return (std::max(copy.key_bytes, copy.value_bytes) + kAlign - 1) / kAlign * kAlign;
}

size_t row_staging_bytes(const SlotCopy& copy, size_t slots) {
  return static_cast<size_t>(arrays_of(copy) * staging_stride_of(copy)) * slots;
}

}  // namespace

void store_rows(const StoreArgs& args, Exec& exec) {
  const cudaStream_t stream = stream_of(exec);
  if (args.keys.rows == 0) return;
  const LayerKv& layer = args.layer;
  Store store{.keys = array_of(args.keys, layer.keys, layer.key_stride, layer.type, layer.key_scale),
              .values = {},
              .to = layer.type,
              .slots = args.slots,
              .live_rows = args.live_rows};
  if (!layer.latent())
    store.values = array_of(args.values, layer.values, layer.value_stride, layer.type, layer.value_scale);
  const dim3 grid(static_cast<uint32_t>(args.keys.rows), layer.latent() ? 1 : 2);
  store_kernel<<<grid, kThreads, 0, stream>>>(store);
  check_cuda(cudaGetLastError(), "the rows were not stored");
}

size_t staging_bytes(const SlotCopy& copy, size_t slots) {
  return row_staging_bytes(copy, slots) + 2 * slots * sizeof(TokenSlot);
}

void copy_slots(const SlotCopy& copy, std::span<const TokenSlot> from, std::span<const TokenSlot> to,
                std::byte* staging, Exec& exec) {
  const cudaStream_t stream = stream_of(exec);
  auto* const slots = reinterpret_cast<TokenSlot*>(staging + row_staging_bytes(copy, from.size()));
  // Lists in pageable memory are read before the call returns.
  exec.stream()->copy(reinterpret_cast<std::byte*>(slots), reinterpret_cast<const std::byte*>(from.data()),
                      from.size_bytes());
  exec.stream()->copy(reinterpret_cast<std::byte*>(slots + from.size()), reinterpret_cast<const std::byte*>(to.data()),
                      to.size_bytes());
  const dim3 grid(static_cast<uint32_t>(from.size()), static_cast<uint32_t>(arrays_of(copy)));
  const Move out{.copy = copy,
                 .slots = slots,
                 .staging = staging,
                 .staging_stride = staging_stride_of(copy),
                 .into_staging = true};
  Move in = out;
  in.slots = slots + from.size();
  in.into_staging = false;
  move_kernel<<<grid, kThreads, 0, stream>>>(out);
  move_kernel<<<grid, kThreads, 0, stream>>>(in);
  check_cuda(cudaGetLastError(), "the slots were not copied");
}

}  // namespace quire::kv::cuda
