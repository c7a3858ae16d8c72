// Products of one GPU: each matrix of a layer, and a layer's four products one after the other, as a decode step has
// them. A line's calls are one captured graph over the weights of several layers, more than any cache holds.
#include <algorithm>
#include <memory>
#include <span>

#include "base/check.h"
#include "base/cuda.h"
#include "bench.h"
#include "gpu_limits.h"
#include "ops/matmul_choice.h"
#include "progress.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kGpuMatmulRounds = 25, kQuickGpuMatmulRounds = 5;

struct Matrix {
  const char* name;
  int64_t inputs, outputs;  // of gate and up together
  ops::Store store = ops::Store::set;
  bool is_pair() const { return store == ops::Store::silu_mul; }
  int64_t columns() const { return is_pair() ? outputs / 2 : outputs; }
  int64_t bytes(BlockType type) const { return bytes_of(type, inputs * outputs); }  // as files hold them
};

struct MatmulModel {
  std::string name;
  int32_t layers;
  std::vector<Matrix> matrices;
  BlockType type = BlockType::bf16;
};

constexpr BlockType kQuantisedTypes[] = {BlockType::q8_0, BlockType::q4_0, BlockType::q4_1,
                                         BlockType::q5_0, BlockType::q5_1, BlockType::q4_k,
                                         BlockType::q5_k, BlockType::q6_k, BlockType::f8_e4m3};
// 8b as q4_k: "8b_Q4_K". Smaller weights need more layers to be more than a cache holds.
MatmulModel quantised(MatmulModel model, BlockType type) {
  model.name = cat(model.name, "_", to_string(type));
  model.layers *= 2;
  model.type = type;
  return model;
}

// A model of 8 B parameters, and SmolLM2 of 135 M, in bf16 and in the quantised types that fit them; heads are models
// of one matrix.
std::vector<MatmulModel> matmul_models(bool quick) {
  using enum ops::Store;
  std::vector<MatmulModel> models = {
      {"135m",
       30,
       {{"qkv", 576, 960}, {"o", 576, 576, add}, {"gate_up", 576, 3072, silu_mul}, {"down", 1536, 576, add}}},
      {"135m_head", 3, {{"head", 576, 49152}}}};
  const MatmulModel small = models[0];
  models.push_back(quantised(small, BlockType::q4_1));
  if (quick) return models;
  const MatmulModel large{
      "8b",
      2,
      {{"qkv", 4096, 6144}, {"o", 4096, 4096, add}, {"gate_up", 4096, 28672, silu_mul}, {"down", 14336, 4096, add}}};
  models.push_back(large);
  for (const BlockType type : kQuantisedTypes) models.push_back(quantised(large, type));
  models.push_back({"8b_head", 1, {{"head", 4096, 128256}}});
  return models;
}

// Small numbers without a pattern: a product of equal ones takes less power, and less time.
std::vector<uint16_t> numbers(int64_t count) {
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  uint32_t state = 1;
  for (uint16_t& x : bits) {
    state = state * 1664525 + 1013904223;
    // As bf16 of magnitude 2^-7, both signs; no byte is a NaN of 8 bits.
    x = static_cast<uint16_t>(0x3c00 | (state >> 16 & 0x80fe));
  }
  return bits;
}

class GpuMatmulWorld {
 public:
  GpuMatmulWorld(const MatmulModel& model, int32_t most_rows, Exec& exec) : model_(model), exec_(exec) {
    int64_t widest_in = 0, widest_out = 0;
    for (const Matrix& matrix : model.matrices) {
      widest_in = std::max(widest_in, matrix.inputs);
      widest_out = std::max(widest_out, matrix.columns());
    }
    for (int32_t layer = 0; layer < model.layers; ++layer)
      for (const Matrix& matrix : model.matrices) weights_.push_back(packed(matrix));
    in_ = std::make_unique<ops::ActivationBuffer>(most_rows, widest_in, Place::device);
    const ops::ActivationRows in = in_->view(widest_in, {.bf16 = true, .q8 = true});
    fill(in.bf16, most_rows * widest_in);
    fill(in.q, most_rows * in.q_stride);
    fill(in.scale, most_rows * widest_in / 32);
    out_ = Buffer(static_cast<size_t>(most_rows * widest_out) * sizeof(float), Place::device);
    live_ = Buffer(sizeof(int32_t), Place::device);
  }

  // Of one layer: of matrix `only`, or of all.
  double seconds(int32_t rows, int32_t only, int rounds) {
    exec_.stream()->copy(live_.data(), reinterpret_cast<const std::byte*>(&rows), sizeof(rows));
    exec_.wait();
    launch(rows, only);  // what is chosen once is chosen before the capture
    exec_.wait();
    exec_.stream()->begin_capture();
    launch(rows, only);
    const auto graph = exec_.stream()->end_capture();
    exec_.stream()->launch(*graph);
    std::vector<double> seconds;
    for (int i = 0; i < rounds; ++i)
      seconds.push_back(exec_.stream()->seconds_of([&] { exec_.stream()->launch(*graph); }) / model_.layers);
    return median(seconds);
  }
  std::string kernel(int32_t rows, int32_t only) {
    return only < 0 ? "" : ops::cuda::kernel_of(args(static_cast<size_t>(only), rows), exec_);
  }

 private:
  ops::PackedMatrix packed(const Matrix& matrix) const {
    const std::vector<uint16_t> bits = numbers(bytes_of(model_.type, matrix.inputs * matrix.columns()) / 2);
    const ops::WeightView view{model_.type, reinterpret_cast<const std::byte*>(bits.data()), matrix.columns(),
                               matrix.inputs};
    const ops::WeightView views[] = {view, view};
    using Join = ops::PackedMatrix::Join;
    return ops::PackedMatrix(std::span(views, matrix.is_pair() ? 2 : 1),
                             matrix.is_pair() ? Join::gate_and_up : Join::stack, exec_);
  }
  template <class T>
  void fill(T* array, int64_t count) const {
    const auto bytes = count * static_cast<int64_t>(sizeof(T));
    const std::vector<uint16_t> values = numbers(bytes / 2);
    exec_.stream()->copy(reinterpret_cast<std::byte*>(array), reinterpret_cast<const std::byte*>(values.data()),
                         values.size() * sizeof(uint16_t));
    exec_.wait();
  }
  // Of weights_[i]; silu's results are bf16 where weights are, as in a model.
  ops::MatmulArgs args(size_t i, int32_t rows) const {
    const Matrix& matrix = model_.matrices[i % model_.matrices.size()];
    ops::ActivationRows in = in_->view(matrix.inputs, weights_[i].forms());
    in.rows = rows;
    return {.weights = &weights_[i],
            .in = in,
            .out = {reinterpret_cast<float*>(out_.data()), rows, matrix.columns(), matrix.columns()},
            .store = matrix.store,
            .fusions = {.bf16_out = matrix.is_pair() && weights_[i].forms().bf16},
            .live_rows = reinterpret_cast<const int32_t*>(live_.data())};
  }
  void launch(int32_t rows, int32_t only) {
    for (size_t i = 0; i < weights_.size(); ++i)
      if (only < 0 || i % model_.matrices.size() == static_cast<size_t>(only)) ops::matmul(args(i, rows), exec_);
  }

  const MatmulModel& model_;
  Exec& exec_;
  std::vector<ops::PackedMatrix> weights_;
  std::unique_ptr<ops::ActivationBuffer> in_;
  Buffer out_, live_;
};

struct GpuMatmulLine {
  std::string name;
  Work work;
  int32_t rows, only;
};

std::vector<GpuMatmulLine> lines_of(const MatmulModel& model, const BenchOptions& options) {
  std::vector<GpuMatmulLine> lines;
  for (const int32_t rows : {1, 8, 16, 32, 64, 128, 256, 512}) {
    Work all{};
    for (size_t i = 0; i < model.matrices.size(); ++i) {
      const Matrix& matrix = model.matrices[i];
      const Work work{
          .bytes = static_cast<double>(matrix.bytes(model.type) + rows * (2 * matrix.inputs + 4 * matrix.columns())),
          .flops = 2.0 * rows * static_cast<double>(matrix.inputs * matrix.outputs)};
      all.bytes += work.bytes;
      all.flops += work.flops;
      lines.push_back(
          {cat("matmul/", model.name, "/", matrix.name, "/", matrix.inputs, "x", matrix.outputs, "/rows=", rows), work,
           rows, static_cast<int32_t>(i)});
    }
    if (model.matrices.size() > 1) lines.push_back({cat("matmul/", model.name, "/layer/rows=", rows), all, rows, -1});
  }
  std::erase_if(lines, [&](const GpuMatmulLine& line) { return line.name.find(options.filter) == std::string::npos; });
  return lines;
}

}  // namespace

Report bench_gpu_matmul(const BenchOptions& options) {
  cuda::Stream stream;
  Exec exec(ExecOptions{.threads = options.threads, .stream = &stream});
  const GpuLimits gpu{
      .name = cuda::device_name(), .read_bytes = gpu_read_bytes(stream), .bf16_flops = gpu_bf16_flops(stream)};
  const int rounds = options.repeat ? options.repeat : options.quick ? kQuickGpuMatmulRounds : kGpuMatmulRounds;
  Report report{.machine = LimitSampler(exec, {}).limits(), .command = "", .results = {}, .gpu = gpu};
  Progress progress;
  for (const MatmulModel& model : matmul_models(options.quick)) {
    const std::vector<GpuMatmulLine> lines = lines_of(model, options);
    if (lines.empty()) continue;
    progress.say(model.name);
    GpuMatmulWorld world(model, 512, exec);
    for (const GpuMatmulLine& line : lines) {
      progress.say(line.name);
      const double seconds = world.seconds(line.rows, line.only, rounds);
      const double limit =
          std::max(line.work.bytes / *gpu.read_bytes, gpu.bf16_flops ? line.work.flops / *gpu.bf16_flops : 0);
      report.results.push_back({.name = line.name,
                                .median_us = seconds * 1e6,
                                .limit_us = limit * 1e6,
                                .gbps = line.work.bytes / seconds / 1e9,
                                .tflops = line.work.flops / seconds / 1e12,
                                .note = world.kernel(line.rows, line.only),
                                .device = "cuda"});
    }
  }
  check(!report.results.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");
  return report;
}

}  // namespace quire::bench
