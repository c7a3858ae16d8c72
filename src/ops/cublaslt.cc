#include "ops/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/buffer.h"
#include "base/check.h"

namespace quire::ops::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20, kScratchBytes = size_t{64} << 20;

// --- the library

constexpr const char* kLibraries[] = {"libcublasLt.so.13",
                                      "libcublasLt.so.12",
                                      "/usr/local/cuda/lib64/libcublasLt.so.13",
                                      "/usr/local/cuda/lib64/libcublasLt.so.12",
                                      "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.13",
                                      "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.12"};

#define QUIRE_CUBLASLT_CALLS(CALL)           \
  CALL(cublasLtCreate)                       \
  CALL(cublasLtMatmul)                       \
  CALL(cublasLtMatmulAlgoConfigGetAttribute) \
  CALL(cublasLtMatmulAlgoGetHeuristic)       \
  CALL(cublasLtMatmulDescCreate)             \
  CALL(cublasLtMatmulDescDestroy)            \
  CALL(cublasLtMatmulDescSetAttribute)       \
  CALL(cublasLtMatmulPreferenceCreate)       \
  CALL(cublasLtMatmulPreferenceDestroy)      \
  CALL(cublasLtMatmulPreferenceSetAttribute) \
  CALL(cublasLtMatrixLayoutCreate)           \
  CALL(cublasLtMatrixLayoutDestroy)

struct Library {
#define QUIRE_MEMBER(name) decltype(&::name) name = nullptr;
  QUIRE_CUBLASLT_CALLS(QUIRE_MEMBER)
#undef QUIRE_MEMBER
  cublasLtHandle_t handle = nullptr;
};

void check_library(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: ", what, " failed with status ", static_cast<int>(status));
}

bool find_calls(void* opened, Library& library) {
  bool complete = true;
#define QUIRE_FIND(call)                                                    \
  library.call = reinterpret_cast<decltype(&::call)>(dlsym(opened, #call)); \
  complete = complete && library.call;
  QUIRE_CUBLASLT_CALLS(QUIRE_FIND)
#undef QUIRE_FIND
  return complete;
}

// Null: not here. It stays open for life.
const Library* library() {
  static const std::unique_ptr<const Library> found = []() -> std::unique_ptr<const Library> {
    for (const char* name : kLibraries) {
      void* opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      auto made = std::make_unique<Library>();
      if (opened && find_calls(opened, *made) && made->cublasLtCreate(&made->handle) == CUBLAS_STATUS_SUCCESS)
        return made;
    }
    std::fputs(
        "quire: libcublasLt.so.13 (or .12) was not found, so products of many rows take quire's own kernels, "
        "which are slower; LD_LIBRARY_PATH may name its folder\n",
        stderr);
    return nullptr;
  }();
  return found.get();
}

// --- one product described

template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

struct Description {
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> weights, in, out;
};

Owned<cublasLtMatrixLayout_t> layout_of(const Library& lib, cudaDataType type, int64_t rows, int64_t columns,
                                        int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check_library(
      lib.cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
      "a matrix layout");
  return {made, lib.cublasLtMatrixLayoutDestroy};
}

// The library counts columns first: out^T [outputs, rows] = weights [inputs, outputs]^T in [inputs, rows].
Description description_of(const Library& lib, const LibraryProduct& p) {
  cublasLtMatmulDesc_t operation = nullptr;
  check_library(lib.cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a description");
  Owned<cublasLtMatmulDesc_t> owned(operation, lib.cublasLtMatmulDescDestroy);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check_library(
      lib.cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "an attribute");
  return {std::move(owned), layout_of(lib, CUDA_R_16BF, p.inputs, p.outputs, p.inputs),
          layout_of(lib, CUDA_R_16BF, p.inputs, p.rows, p.in_stride),
          layout_of(lib, p.bf16_out ? CUDA_R_16BF : CUDA_R_32F, p.outputs, p.rows, p.out_stride)};
}

uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  return static_cast<uint32_t>(std::min<uintptr_t>(bits & (~bits + 1), 256));
}

// --- algorithms, each asked for once

using Shape = std::array<int64_t, 10>;

Shape shape_of(const LibraryProduct& p) {
  return {p.outputs,
          p.inputs,
          p.rows,
          p.in_stride,
          p.out_stride,
          p.add,
          p.bf16_out,
          alignment_of(p.weights),
          alignment_of(p.in),
          alignment_of(p.out)};
}

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm;
  std::string description;
};

// 0: the algorithm has no such attribute.
int32_t config_of(const Library& lib, const cublasLtMatmulAlgo_t& algorithm,
                  cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int32_t value = 0;
  size_t written = 0;
  const auto status = lib.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : 0;
}

std::string describe(const Library& lib, const LibraryProduct& p, const cublasLtMatmulAlgo_t& algorithm) {
  return cat("cuBLASLt, ", p.outputs, " outputs, ", p.inputs, " inputs, ", p.rows, " rows: algorithm ",
             config_of(lib, algorithm, CUBLASLT_ALGO_CONFIG_ID), ", tile ",
             config_of(lib, algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), ", stages ",
             config_of(lib, algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID), ", splits ",
             config_of(lib, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

// The one that the library holds for the fastest.
Algorithm ask_for_algorithm(const Library& lib, const LibraryProduct& p, const Description& description) {
  cublasLtMatmulPreference_t made = nullptr;
  check_library(lib.cublasLtMatmulPreferenceCreate(&made), "a preference");
  const Owned<cublasLtMatmulPreference_t> preference(made, lib.cublasLtMatmulPreferenceDestroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_library(lib.cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)), "a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.weights));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.in));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.out));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.out));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  check_library(lib.cublasLtMatmulAlgoGetHeuristic(lib.handle, description.operation.get(), description.weights.get(),
                                                   description.in.get(), description.out.get(), description.out.get(),
                                                   made, 1, &result, &count),
                "choosing an algorithm");
  check(count == 1, "cuBLASLt has no algorithm for ", p.outputs, " outputs, ", p.inputs, " inputs and ", p.rows,
        " rows");
  return {result.algo, describe(lib, p, result.algo)};
}

const Algorithm& algorithm_of(const Library& lib, const LibraryProduct& p, const Description& description) {
  static std::mutex mutex;
  static std::map<Shape, Algorithm> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(shape_of(p));
  if (found != known.end()) return found->second;
  return known.emplace(shape_of(p), ask_for_algorithm(lib, p, description)).first->second;
}

// --- memory of a stream

struct StreamMemory {
  Buffer workspace{kWorkspaceBytes, Place::device}, scratch{kScratchBytes, Place::device};
};
// A stream's, for life: a graph may have captured the addresses.
StreamMemory& memory_of(cudaStream_t stream) {
  static std::mutex mutex;
  static auto& memories = *new std::map<cudaStream_t, StreamMemory>;  // never ends, as the driver may have by then
  const std::lock_guard lock(mutex);
  return memories[stream];
}

}  // namespace

bool has_cublaslt() { return library() != nullptr; }

void prepare_cublaslt(cudaStream_t stream) {
  if (has_cublaslt()) memory_of(stream);
}

std::span<std::byte> cublaslt_scratch(cudaStream_t stream) { return {memory_of(stream).scratch.data(), kScratchBytes}; }

void cublaslt_multiply(const LibraryProduct& p, cudaStream_t stream) {
  const Library& lib = *library();
  const Description description = description_of(lib, p);
  const float beta = p.add ? 1 : 0;
  check_library(
      lib.cublasLtMatmul(lib.handle, description.operation.get(), &p.scale, p.weights, description.weights.get(), p.in,
                         description.in.get(), &beta, p.out, description.out.get(), p.out, description.out.get(),
                         &algorithm_of(lib, p, description).algorithm, memory_of(stream).workspace.data(),
                         kWorkspaceBytes, stream),
      "a product");
}

std::string cublaslt_choice(const LibraryProduct& p) {
  const Library& lib = *library();
  return algorithm_of(lib, p, description_of(lib, p)).description;
}

}  // namespace quire::ops::cuda
