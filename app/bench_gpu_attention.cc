// The lines of one GPU, each in a world of its own: its memory is given back before the next.
#include <algorithm>
#include <chrono>
#include <span>

#include "attention_lines.h"
#include "base/check.h"
#include "bench.h"
#include "gpu_attention_world.h"
#include "gpu_limits.h"
#include "progress.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kGpuRounds = 25, kQuickGpuRounds = 5;
constexpr double kSecondsPerGpuLine = 3;  // of the GPU's own time; then the rounds so far are enough

double median_seconds(const AttentionLine& line, int rounds, Exec& exec) {
  GpuAttentionWorld world(line, exec);
  std::vector<double> seconds;
  const auto begin = std::chrono::steady_clock::now();
  while (std::ssize(seconds) < rounds &&
         (seconds.empty() || seconds_between(begin, std::chrono::steady_clock::now()) < kSecondsPerGpuLine))
    seconds.push_back(world.run());
  return median(seconds);
}

// Reading its bytes or computing its products, whichever takes longer.
double limit_seconds_of(const Work& work, const GpuLimits& gpu) {
  return std::max(work.bytes / *gpu.read_bytes, gpu.bf16_flops ? work.flops / *gpu.bf16_flops : 0);
}

Result result_of(const Timing& timing, std::span<const Timing> timings, const GpuLimits& gpu) {
  const Work work = work_of(timing.line);
  return {.name = name(timing.line, Isa::plain),
          .median_us = timing.seconds * 1e6,
          .limit_us = limit_seconds_of(work, gpu) * 1e6,
          .gbps = work.bytes / timing.seconds / 1e9,
          .tflops = work.flops / timing.seconds / 1e12,
          .note = note_of(timing, timings),
          .device = "cuda"};
}

}  // namespace

Report bench_gpu_attention(const BenchOptions& options) {
  const auto groups = filtered({gpu_attention_lines(options.quick)}, options.filter, Isa::plain);
  check(!groups.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");
  cuda::Stream stream;
  Exec exec(ExecOptions{.threads = 1, .stream = &stream});
  const GpuLimits gpu{
      .name = cuda::device_name(), .read_bytes = gpu_read_bytes(stream), .bf16_flops = gpu_bf16_flops(stream)};
  const int rounds = options.repeat ? options.repeat : options.quick ? kQuickGpuRounds : kGpuRounds;
  std::vector<Timing> timings;
  {
    Progress progress;
    for (const AttentionLine& line : groups.front()) {
      progress.say(name(line, Isa::plain));
      timings.push_back({line, median_seconds(line, rounds, exec)});
    }
  }
  Report report{.machine = LimitSampler(exec, {}).limits(), .command = "", .results = {}, .gpu = gpu};
  for (const Timing& timing : timings) report.results.push_back(result_of(timing, timings, gpu));
  return report;
}

}  // namespace quire::bench
