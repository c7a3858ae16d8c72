// The lines of one GPU, each in a world of its own: its memory is given back before the next.
#include <algorithm>

#include "attention_lines.h"
#include "base/check.h"
#include "bench.h"
#include "gpu_attention_world.h"
#include "gpu_read.h"
#include "progress.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kGpuRounds = 25, kQuickGpuRounds = 5;

std::vector<AttentionLine> gpu_lines(bool quick) {
  constexpr std::pair<int32_t, int32_t> kDecode[] = {{1, 4096},  {1, 65536},  {8, 4096},   {32, 1024},
                                                     {32, 4096}, {128, 1024}, {128, 4096}, {16, 32768}};
  std::vector<AttentionLine> lines;
  for (const auto& [batch, keys] : kDecode)
    for (const int32_t page : {1, 16, 64})
      if (!quick || page == 16)
        lines.push_back({.kind = Kind::decode, .batch = batch, .tokens = keys, .page = page, .isa = Isa::plain});
  return lines;
}

}  // namespace

Report bench_gpu_attention(const BenchOptions& options) {
  check(cuda::devices() > 0, "this machine has no GPU, or quire was built without CUDA");
  cuda::Stream stream;
  Exec exec(ExecOptions{.threads = 1, .stream = &stream});
  const double read_bytes = gpu_read_bytes(stream);
  const int rounds = options.repeat ? options.repeat : options.quick ? kQuickGpuRounds : kGpuRounds;
  Report report{.machine = LimitSampler(exec, {}).limits(), .command = "", .results = {}};
  report.gpu = {.name = cuda::device_name(), .read_bytes = read_bytes};
  const Progress progress;
  for (const AttentionLine& line : gpu_lines(options.quick)) {
    const std::string called = name(line, Isa::plain);
    if (called.find(options.filter) == std::string::npos) continue;
    progress.say(called);
    GpuAttentionWorld world(line, exec);
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) seconds.push_back(world.run());
    const Work work = work_of(line);
    const double time = median(seconds);
    report.results.push_back({.name = called,
                              .median_us = time * 1e6,
                              .limit_us = work.bytes / read_bytes * 1e6,
                              .gbps = work.bytes / time / 1e9,
                              .tflops = work.flops / time / 1e12,
                              .device = "cuda"});
  }
  check(!report.results.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");
  return report;
}

}  // namespace quire::bench
