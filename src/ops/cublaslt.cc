#include "ops/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "base/cuda.h"
#include "base/cuda_call.h"

namespace quire::ops::cuda {
namespace {

using quire::cuda::check_cuda;

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

// What the library proposes, the one that it holds for the fastest first.
std::vector<cublasLtMatmulAlgo_t> proposals(const Library& lib, const LibraryProduct& p,
                                            const Description& description) {
  constexpr int kMost = 8;
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
  cublasLtMatmulHeuristicResult_t results[kMost] = {};
  int count = 0;
  check_library(lib.cublasLtMatmulAlgoGetHeuristic(lib.handle, description.operation.get(), description.weights.get(),
                                                   description.in.get(), description.out.get(), description.out.get(),
                                                   made, kMost, results, &count),
                "choosing an algorithm");
  check(count > 0, "cuBLASLt has no algorithm for ", p.outputs, " outputs, ", p.inputs, " inputs and ", p.rows,
        " rows");
  std::vector<cublasLtMatmulAlgo_t> found;
  for (const auto& result : std::span(results).first(static_cast<size_t>(count))) found.push_back(result.algo);
  return found;
}

// --- the fastest of some, by time

// While it lives this thread may allocate, launch and wait although a stream of its records a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "no other mode of capture"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A product in memory of its own: zeros that it reads, then its results. All is cleared before every product, which is
// more than the second cache holds, so weights come from memory.
class TimedProduct {
 public:
  TimedProduct(const Library& lib, const LibraryProduct& p, const Description& description)
      : lib_(lib), p_(p), description_(description), clearing_(best_of([] {})) {}

  static bool fits(const LibraryProduct& p) {
    constexpr int32_t kMostRows = 256;  // rooms of decode steps, whose graphs are recorded before anybody waits
    return p.rows <= kMostRows && out_at(p) + int64_t{p.rows} * p.out_stride * 4 <= kBytes &&
           quire::cuda::memory().free > 2 * (kBytes + int64_t{kWorkspaceBytes});
  }
  double seconds_of(const cublasLtMatmulAlgo_t& algorithm) {
    return best_of([&] { launch(algorithm); }) - clearing_;
  }

 private:
  static constexpr int64_t kBytes = int64_t{96} << 20;
  static int64_t out_at(const LibraryProduct& p) { return (int64_t{p.rows} * p.in_stride * 2 + 255) / 256 * 256; }

  // The best of some replays of a graph, as steps are graphs.
  template <class Work>
  double best_of(const Work& work) {
    constexpr int32_t kTimes = 2, kReplays = 3;
    stream_.begin_capture();
    for (int32_t i = 0; i < kTimes; ++i) {
      check_cuda(cudaMemsetAsync(memory_.data(), 0, kBytes, stream()), "no memory is cleared");
      work();
    }
    const auto graph = stream_.end_capture();
    double best = std::numeric_limits<double>::max();
    for (int32_t i = 0; i < kReplays; ++i) best = std::min(best, stream_.seconds_of([&] { stream_.launch(*graph); }));
    return best;
  }
  void launch(const cublasLtMatmulAlgo_t& algorithm) {
    const float beta = p_.add ? 1 : 0;
    void* out = memory_.data() + out_at(p_);
    check_library(lib_.cublasLtMatmul(lib_.handle, description_.operation.get(), &p_.scale, p_.weights,
                                      description_.weights.get(), memory_.data(), description_.in.get(), &beta, out,
                                      description_.out.get(), out, description_.out.get(), &algorithm,
                                      workspace_.data(), kWorkspaceBytes, stream()),
                  "a product that is timed");
  }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.handle()); }

  const Library& lib_;
  const LibraryProduct& p_;
  const Description& description_;
  quire::cuda::Stream stream_;
  Buffer memory_{kBytes, Place::device}, workspace_{kWorkspaceBytes, Place::device};
  double clearing_;
};

// The library's first, unless another is faster by more than clocks err.
size_t fastest_of(const Library& lib, const LibraryProduct& p, const Description& description,
                  const std::vector<cublasLtMatmulAlgo_t>& algorithms) try {
  constexpr double kFaster = 0.97;
  const RelaxedCapture relaxed;
  if (algorithms.size() < 2 || !TimedProduct::fits(p)) return 0;
  TimedProduct product(lib, p, description);
  size_t fastest = 0;
  double best = product.seconds_of(algorithms[0]) * kFaster;
  for (size_t i = 1; i < algorithms.size(); ++i)
    if (const double seconds = product.seconds_of(algorithms[i]); seconds < best) {
      best = seconds;
      fastest = i;
    }
  return fastest;
} catch (const CheckError&) {
  return 0;  // what cannot be timed can still be multiplied
}

const Algorithm& algorithm_of(const Library& lib, const LibraryProduct& p, const Description& description) {
  static std::mutex mutex;
  static std::map<Shape, Algorithm> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(shape_of(p));
  if (found != known.end()) return found->second;
  const std::vector<cublasLtMatmulAlgo_t> proposed = proposals(lib, p, description);
  const cublasLtMatmulAlgo_t& fastest = proposed[fastest_of(lib, p, description, proposed)];
  return known.emplace(shape_of(p), Algorithm{fastest, describe(lib, p, fastest)}).first->second;
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
