// Problems of real models for the GPU's own kernels, and which kernel has to take a step of them: said here in plain
// words, apart from choose_gpu(), and compared with the calls that were counted.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ostream>

#include "attn/gpu_choice.h"
#include "attn/testing/case.h"
#include "base/cuda.h"

namespace quire::attn::testing {

struct GpuProblem {
  const char* name;
  Dtype query_type, kv_type;
  int32_t heads, kv_heads, key_dim, value_dim;
  bool is_latent = false;

  Case applied_to(Case c) const {
    c.query_type = query_type;
    c.kv_type = kv_type;
    c.heads = heads;
    c.kv_heads = kv_heads;
    c.key_dim = key_dim;
    c.value_dim = value_dim;
    c.latent = is_latent;
    c.place = Place::pinned;
    return c;
  }
};

inline void PrintTo(const GpuProblem& problem, std::ostream* out) { *out << problem.name; }

inline constexpr GpuProblem kGpuProblems[] = {
    {"bf16_64", Dtype::bf16, Dtype::bf16, 8, 1, 64, 64},
    {"f16_64", Dtype::f16, Dtype::f16, 6, 3, 64, 64},
    {"fp8_64", Dtype::bf16, Dtype::f8e4m3, 10, 5, 64, 64},
    {"bf16_128", Dtype::bf16, Dtype::bf16, 12, 6, 128, 128},
    {"f16_128", Dtype::f16, Dtype::f16, 8, 8, 128, 128},
    {"fp8_128", Dtype::f16, Dtype::f8e4m3, 12, 3, 128, 128},
    {"bf16_192", Dtype::bf16, Dtype::bf16, 5, 5, 192, 128},
    {"f16_192", Dtype::f16, Dtype::f16, 4, 1, 192, 128},
    {"fp8_192", Dtype::bf16, Dtype::f8e4m3, 6, 2, 192, 128},
    {"bf16_256", Dtype::bf16, Dtype::bf16, 6, 3, 256, 256},
    {"f16_256", Dtype::f16, Dtype::f16, 8, 8, 256, 256},
    {"fp8_256", Dtype::bf16, Dtype::f8e4m3, 4, 2, 256, 256},
    {"bf16_latent", Dtype::bf16, Dtype::bf16, 8, 1, 576, 512, true},
    {"f16_latent", Dtype::f16, Dtype::f16, 5, 1, 576, 512, true},
    {"fp8_latent", Dtype::bf16, Dtype::f8e4m3, 9, 1, 576, 512, true},
};

// Tensor cores multiply probabilities that are rounded to 16 bits, of bf16 by up to 2^-8: so a result is off by up to
// 2^-8 of its sum of |probability x value|, which is up to five.
constexpr float kGpuTolerance = 2e-2f;
constexpr std::chrono::seconds kGpuTimeLimit(30);  // of a few launches, each of milliseconds at most

inline bool has_gpu() { return quire::cuda::devices() > 0; }
inline bool has_hopper() { return has_gpu() && cuda::device().capability / 10 == 9; }

inline int32_t queries_of(Mode mode, const Sizes& sizes) {
  if (mode == Mode::draft_tree) return sizes.topk;
  return mode == Mode::verify || mode == Mode::verify_tree ? sizes.draft_tokens : 1;
}

// Of a Hopper GPU, for the problems above and short contexts.
inline GpuKernel expected_kernel(const Sizes& sizes, const Step& step) {
  const bool is_tree = step.mode == Mode::draft_tree || step.mode == Mode::verify_tree;
  const bool is_any_number_of_queries =
      step.mode == Mode::extend || step.mode == Mode::draft_extend || step.kind == LayerKind::local;
  const int32_t rows = queries_of(step.mode, sizes) * sizes.heads / sizes.kv_heads;
  if (sizes.latent) return GpuKernel::latent;
  const bool is_few = !is_any_number_of_queries && rows <= 64;
  const bool has_decode = sizes.key_dim <= 128 && step.kind != LayerKind::local;
  const int32_t tiles = (rows + 7) / 8 * std::max(step.captured, static_cast<int32_t>(step.sequences.size()));
  const bool has_clusters = !is_tree && sizes.heads / sizes.kv_heads <= 8 && tiles * sizes.kv_heads <= 132;
  if (has_decode && is_few && has_clusters && sizes.kv_type != Dtype::f8e4m3) return GpuKernel::decode_cluster;
  if (has_decode && (is_few || is_tree)) return GpuKernel::decode;
  return GpuKernel::prefill;
}

// What was launched since it was made.
class Launches {
 public:
  Launches() {
    for (const GpuKernel kernel : kGpuKernels) before_[static_cast<size_t>(kernel)] = launches_of(kernel);
  }
  int64_t of(GpuKernel kernel) const { return launches_of(kernel) - before_[static_cast<size_t>(kernel)]; }

  // On another GPU the test goes on, and is shown as skipped if nothing else is wrong.
  void expect_only(GpuKernel expected, int64_t calls) const {
    if (!has_hopper() && ::testing::Test::IsSkipped()) return;
    if (!has_hopper()) GTEST_SKIP() << "the GPU is not a Hopper: its results are checked, its choice of kernels is not";
    for (const GpuKernel kernel : kGpuKernels)
      EXPECT_EQ(of(kernel), kernel == expected ? calls : 0) << to_string(kernel);
  }

 private:
  std::array<int64_t, kGpuKernels.size()> before_{};
};

}  // namespace quire::attn::testing
