#include "attn/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/cuda_call.h"

namespace quire::attn::cuda {
namespace {

// Of the driver, whose library is there only where a GPU is: asked for by name, not linked.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    quire::cuda::check_cuda(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
        "the driver was not asked for tensor maps");
    check(result == cudaDriverEntryPointSuccess, "the driver is too old: it has no tensor maps");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

CUtensorMap encode(Dtype type, const void* data, int64_t dim, int64_t heads, int64_t rows, int64_t row_stride,
                   int32_t box_heads, int32_t box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(heads),
                              static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(dim * 2), static_cast<cuuint64_t>(row_stride * 2)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_heads), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, type == Dtype::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "the driver makes no tensor map of ", rows, " rows of ", heads, " heads and dim ", dim,
        ": error ", static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap tensor_map(const kv::LayerKv& kv, Rows rows, int32_t slots) {
  const bool is_keys = rows == Rows::keys;
  return encode(kv.type, is_keys ? kv.keys : kv.values, is_keys ? kv.key_dim : kv.value_dim, kv.kv_heads, kv.slots,
                is_keys ? kv.key_stride : kv.value_stride, 1, slots);
}

CUtensorMap tensor_map(const ConstHeadRows& queries, int32_t heads, int32_t rows) {
  return encode(queries.type, queries.data, queries.dim, queries.heads, queries.rows, queries.row_stride, heads, rows);
}

}  // namespace quire::attn::cuda
