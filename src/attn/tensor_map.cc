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

}  // namespace

CUtensorMap tensor_map(const kv::LayerKv& kv, Rows rows, int32_t slots) {
  const bool is_keys = rows == Rows::keys;
  const int64_t dim = is_keys ? kv.key_dim : kv.value_dim, stride = is_keys ? kv.key_stride : kv.value_stride;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(kv.kv_heads),
                              static_cast<cuuint64_t>(kv.slots)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(dim * 2), static_cast<cuuint64_t>(stride * 2)};
  const cuuint32_t box[] = {64, 1, static_cast<cuuint32_t>(slots)}, steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, kv.type == Dtype::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                is_keys ? kv.keys : kv.values, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "the driver makes no tensor map of ", kv.slots, " slots, ", kv.kv_heads,
        " kv heads and dim ", dim, ": error ", static_cast<int>(result));
  return map;
}

}  // namespace quire::attn::cuda
