// From logits to tokens, a step at a time: by the team's threads, or on a GPU by the kernel as a node of a captured
// graph.
#include <optional>
#include <random>

#include "base/buffer.h"
#include "base/check.h"
#include "bench.h"
#include "ops/sample.h"
#include "ops/sample_device.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kSamplingRounds = 31, kQuickSamplingRounds = 5;
constexpr int32_t kStepsInGraph = 16;  // so that a graph's start is spread over them
constexpr int32_t kMostSampledRows = 256;

struct SamplingLine {
  const char* name;
  ops::SamplingParams params;
  int32_t top_logprobs = -1;
};
const std::vector<SamplingLine>& sampling_lines() {
  static const std::vector<SamplingLine> lines = {
      {"greedy", {.temperature = 0}},
      {"greedy/logprobs=5", {.temperature = 0}, 5},
      {"temperature=1", {}},
      {"temperature=0.6/top_k=20/top_p=0.95", {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}},
      {"top_p=0.9", {.top_p = 0.9f}},
      {"min_p=0.05", {.min_p = 0.05f}},
  };
  return lines;
}

// Rows as a model has them: most tokens far below a few likely ones.
std::vector<float> model_like_logits(int32_t rows, int32_t vocabulary) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(static_cast<size_t>(rows) * static_cast<size_t>(vocabulary));
  for (float& logit : logits) logit = normal(random);
  for (int32_t row = 0; row < rows; ++row)
    for (int32_t likely = 0; likely < 10; ++likely)
      logits[static_cast<size_t>(row) * vocabulary + random() % vocabulary] = 14 + 0.5f * static_cast<float>(likely);
  return logits;
}

ops::SampleRow row_of(const SamplingLine& line, const float* logits, int64_t position) {
  return {.logits = logits, .params = &line.params, .position = position, .top_logprobs = line.top_logprobs};
}

double team_seconds(const SamplingLine& line, int32_t rows, int32_t vocabulary, const std::vector<float>& logits,
                    const ops::Sampler& sampler, Exec& exec) {
  return seconds_of([&] {
    exec.parallel(rows, [&](int64_t row, int thread) {
      sampler.sample(row_of(line, logits.data() + row * vocabulary, row), thread);
    });
  });
}

class GpuSamplingWorld {
 public:
  GpuSamplingWorld(int32_t vocabulary, const std::vector<float>& logits, Exec& exec)
      : exec_(exec),
        vocabulary_(vocabulary),
        sampler_({.vocabulary = vocabulary, .rows = kMostSampledRows, .request_rows = kMostSampledRows}, exec),
        logits_(logits.size() * sizeof(float), Place::device),
        inputs_(sizeof(Inputs), Place::device) {
    exec.stream()->copy(logits_.data(), reinterpret_cast<const std::byte*>(logits.data()), logits_.size());
    exec.wait();
  }

  // All steps of the graph are the one that was begun: each writes the same results.
  Graph record(const SamplingLine& line, int32_t rows) {
    const Inputs inputs{++steps_, rows};
    exec_.stream()->copy(inputs_.data(), reinterpret_cast<const std::byte*>(&inputs), sizeof(inputs));
    sampler_.begin(steps_);
    for (int32_t row = 0; row < rows; ++row) sampler_.draw(row_of(line, nullptr, row), {row});
    const auto* const on_device = reinterpret_cast<const Inputs*>(inputs_.data());
    Graph graph;
    exec_.begin_capture(graph);
    for (int32_t step = 0; step < kStepsInGraph; ++step)
      sampler_.launch({reinterpret_cast<const float*>(logits_.data()), rows, vocabulary_, vocabulary_},
                      &on_device->number, &on_device->rows);
    exec_.end_capture();
    graph.replay(exec_);
    exec_.wait();
    return graph;
  }
  double seconds(const Graph& graph) {
    return exec_.stream()->seconds_of([&] { graph.replay(exec_); }) / kStepsInGraph;
  }

 private:
  struct Inputs {  // of a step, that lie on the device
    uint32_t number;
    int32_t rows;
  };

  Exec& exec_;
  int32_t vocabulary_;
  ops::DeviceSampler sampler_;
  Buffer logits_, inputs_;
  uint32_t steps_ = 0;
};

// Calls measure(line, rows, name) for all that are wanted.
template <class Measure>
void for_each_line(int32_t vocabulary, const BenchOptions& options, Measure measure) {
  for (const int32_t rows : {1, 16, kMostSampledRows})
    for (const SamplingLine& line : sampling_lines()) {
      const std::string name = cat("sampling/", line.name, "/rows=", rows, "/vocabulary=", vocabulary);
      if (name.find(options.filter) != std::string::npos) measure(line, rows, name);
    }
}

}  // namespace

Report bench_sampling(const BenchOptions& options) {
  const bool on_gpu = options.device == "cuda";
  check(!on_gpu || cuda::devices() > 0, "this machine has no GPU, or quire was built without CUDA");
  std::optional<cuda::Stream> stream;
  if (on_gpu) stream.emplace();
  Exec exec(ExecOptions{.threads = options.threads, .stream = stream ? &*stream : nullptr});
  Report report{.machine = LimitSampler(exec, {}).limits(), .command = "", .results = {}};
  if (on_gpu) report.gpu = {.name = cuda::device_name()};
  const int rounds = options.repeat ? options.repeat : options.quick ? kQuickSamplingRounds : kSamplingRounds;
  for (const int32_t vocabulary : {49152, 128256}) {
    if (options.quick && vocabulary != 49152) continue;
    const std::vector<float> logits = model_like_logits(kMostSampledRows, vocabulary);
    const ops::Sampler sampler(vocabulary, exec);
    std::optional<GpuSamplingWorld> gpu;
    if (on_gpu) gpu.emplace(vocabulary, logits, exec);
    for_each_line(vocabulary, options, [&](const SamplingLine& line, int32_t rows, const std::string& name) {
      const Graph graph = gpu ? gpu->record(line, rows) : Graph();
      std::vector<double> seconds;
      for (int round = 0; round < rounds; ++round)
        seconds.push_back(gpu ? gpu->seconds(graph) : team_seconds(line, rows, vocabulary, logits, sampler, exec));
      report.results.push_back({.name = name,
                                .median_us = median(seconds) * 1e6,
                                .limit_us = {},
                                .gbps = {},
                                .tflops = {},
                                .device = options.device});
    });
  }
  check(!report.results.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");
  return report;
}

}  // namespace quire::bench
