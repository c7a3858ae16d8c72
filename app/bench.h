// `quire bench`: how fast each operation is here, and how far from what the machine allows.
#pragma once
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "report.h"

namespace quire::bench {

struct BenchOptions {
  int threads = 0;        // 0: as many as the process may use
  std::vector<Isa> isas;  // empty: every one that works here
  std::string filter;     // lines whose name contains it
  int repeat = 0;         // samples of a line; 0: the benchmark's own number
  std::string device = "cpu";
  bool quick = false;  // fewer lines and samples: does it run, and roughly how fast
};

// The results and the machine; the command is the caller's to fill in.
Report bench_attention(const BenchOptions& options);
Report bench_gpu_attention(const BenchOptions& options);
Report bench_matmul(const BenchOptions& options);
Report bench_gpu_matmul(const BenchOptions& options);
Report bench_metadata(const BenchOptions& options);
Report bench_gpu_metadata(const BenchOptions& options);
Report bench_sampling(const BenchOptions& options);  // on either device

}  // namespace quire::bench
