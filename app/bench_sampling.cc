// From logits to tokens, a step at a time: by the team's threads, or on a GPU by the kernel as a node of a captured
// graph. And what a GPU's step takes beside its model: inputs, metadata and sampling.
#include <optional>
#include <random>

#include "attn/metadata.h"
#include "attn/step_upload.h"
#include "attn/write_metadata.h"
#include "base/buffer.h"
#include "base/check.h"
#include "bench.h"
#include "kv/page_pool.h"
#include "kv/page_table_journal.h"
#include "kv/request_table.h"
#include "ops/rms_norm.h"
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

// Steps of one greedy sequence that needs no page, launched before the host waits, with a chain of small kernels for a
// model; and that chain alone.
class GpuStepWorld {
 public:
  GpuStepWorld(int32_t vocabulary, const std::vector<float>& logits, Exec& exec)
      : exec_(exec),
        vocabulary_(vocabulary),
        table_(pool_, 2, kLimits.context),
        mirror_(table_.view()),
        row_(table_.open()),
        arena_(kLimits, Place::device),
        sampler_({.vocabulary = vocabulary, .rows = 1, .request_rows = 2, .steps = kInARow + 1}, exec),
        upload_(kLimits, kCopies, exec, sampler_.drawn_tokens()),
        logits_(static_cast<size_t>(vocabulary) * sizeof(float), Place::device),
        rows_(3 * kWidth * sizeof(float), Place::device) {
    check(table_.reserve(row_, {kLimits.context}), "no pages");
    exec.stream()->copy(logits_.data(), reinterpret_cast<const std::byte*>(logits.data()), logits_.size());
    exec_.begin_capture(step_);
    record_step();
    exec_.end_capture();
    exec_.begin_capture(model_);
    record_model();
    exec_.end_capture();
    seconds_beside_the_model();
  }

  double seconds_beside_the_model() {
    return seconds_in_a_row([&] { launch_step(); }) - seconds_in_a_row([&] { model_.replay(exec_); });
  }

 private:
  static constexpr int32_t kInARow = 64, kKernels = 16, kCopies = 3;
  static constexpr int64_t kWidth = 4096;
  static constexpr attn::Limits kLimits{.batch = 1,
                                        .context = 4096,
                                        .page_size = PageSize(16),
                                        .heads = 32,
                                        .kv_heads = 8,
                                        .key_dim = 128,
                                        .value_dim = 128,
                                        .query_rows = 1,
                                        .wanted_rows = 1,
                                        .journal_pages = 1024,
                                        .device = Device::cuda};

  attn::StepShape shape() const {
    return {.mode = attn::Mode::decode, .captured = 1, .query_rows = 1, .table = mirror_.view()};
  }
  template <class Launch>
  double seconds_in_a_row(Launch launch) {
    const auto launch_all = [&] {
      for (int32_t i = 0; i < kInARow; ++i) launch();
    };
    return exec_.stream()->seconds_of(launch_all) / kInARow;
  }
  void record_model() {
    float* const row = reinterpret_cast<float*>(rows_.data());
    for (int32_t i = 0; i < kKernels; ++i)
      ops::rms_norm({.in = {row, 1, kWidth, kWidth},
                     .weight = row + kWidth,
                     .eps = 1e-5f,
                     .out = {.forms = {.f32 = true}, .rows = 1, .dim = kWidth, .f32 = row + 2 * kWidth},
                     .live_rows = upload_.inputs().query_rows},
                    exec_);
  }
  void record_step() {
    const attn::StepInputs inputs = upload_.inputs();
    attn::write_metadata(shape(), inputs, arena_, exec_);
    record_model();
    sampler_.launch({reinterpret_cast<const float*>(logits_.data()), 1, vocabulary_, vocabulary_}, inputs.number,
                    inputs.logits_count);
  }
  void launch_step() {
    const attn::StepInputBuffers& inputs = upload_.next();
    for (int32_t* one : {&inputs.live(), &inputs.query_rows(), &inputs.wanted_count(), &inputs.logits_count()})
      *one = 1;
    inputs.journal_count() = 0;
    inputs.rows()[0] = row_;
    inputs.lengths()[0] = {512};
    inputs.extend_lengths()[0] = {1};
    inputs.input_ids()[0] = future_token(row_);
    inputs.positions()[0] = 511;
    inputs.slot_mapping()[0] = table_.slot(row_, 511);
    inputs.wanted_rows()[0] = 0;
    sampler_.begin(upload_.next_number());
    sampler_.draw({.logits = nullptr, .params = &greedy_, .position = 511}, row_);
    upload_.send();
    step_.replay(exec_);
  }

  Exec& exec_;
  int32_t vocabulary_;
  kv::PagePool pool_{kLimits.context / 16 + 1, PageSize(16)};
  kv::RequestTable table_;
  kv::PageTableMirror mirror_;
  RequestRow row_;
  attn::MetadataArena arena_;
  ops::DeviceSampler sampler_;
  attn::StepUpload upload_;
  Buffer logits_, rows_;
  ops::SamplingParams greedy_{.temperature = 0};
  Graph step_, model_;
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
    const auto add = [&](const std::string& name, const std::vector<double>& seconds) {
      report.results.push_back({.name = name,
                                .median_us = median(seconds) * 1e6,
                                .limit_us = {},
                                .gbps = {},
                                .tflops = {},
                                .device = options.device});
    };
    const std::string step = cat("step/greedy/beside_the_model/rows=1/vocabulary=", vocabulary);
    if (on_gpu && step.find(options.filter) != std::string::npos) {
      GpuStepWorld world(vocabulary, logits, exec);
      std::vector<double> seconds;
      for (int round = 0; round < rounds; ++round) seconds.push_back(world.seconds_beside_the_model());
      add(step, seconds);
    }
    for_each_line(vocabulary, options, [&](const SamplingLine& line, int32_t rows, const std::string& name) {
      const Graph graph = gpu ? gpu->record(line, rows) : Graph();
      std::vector<double> seconds;
      for (int round = 0; round < rounds; ++round)
        seconds.push_back(gpu ? gpu->seconds(graph) : team_seconds(line, rows, vocabulary, logits, sampler, exec));
      add(name, seconds);
    });
  }
  check(!report.results.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");
  return report;
}

}  // namespace quire::bench
