// What the kernels between a head's passes have in common (draft_rows.h, draft_branches.h).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "model/draft_rows.h"

namespace quire::model::cuda {

// By all threads of a block.
inline __device__ void copy_row(const float* from, float* to, int64_t dim) {
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) to[i] = __ldcg(from + i);
}

inline __device__ TokenSlot slot_at(const kv::TableView& table, RequestRow row, int32_t position) {
  const int32_t tokens = table.page_size.tokens();
  const PageId* const pages = table.pages + row.value * table.stride;
  return {__ldcg(&pages[position / tokens].value) * tokens + position % tokens};
}

inline __device__ void say(PickedDraft* to, int32_t token, float hit, uint32_t number) {
  const auto put = [number](void* word, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(uint64_t{number} << 32 | value) : "memory");
  };
  put(&to->token, static_cast<uint32_t>(token));
  put(&to->hit, __float_as_uint(hit));
}

}  // namespace quire::model::cuda
