// In a test program that includes this: how many calls went to each of the GPU's kernels, printed at its end where any
// did. tests/gpu adds the lines of all programs.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "attn/gpu_choice.h"

namespace quire::attn::testing {

class KernelReport : public ::testing::Environment {
 public:
  void TearDown() override {
    std::string line;
    int64_t all = 0;
    for (const GpuKernel kernel : kGpuKernels) {
      line += cat(line.empty() ? "" : ", ", to_string(kernel), " ", launches_of(kernel));
      all += launches_of(kernel);
    }
    if (all > 0) std::printf("kernels: %s\n", line.c_str());
  }
};

inline ::testing::Environment* const kernel_report = ::testing::AddGlobalTestEnvironment(new KernelReport);

}  // namespace quire::attn::testing
