// Products with weights that a cache holds are held against the fastest integer products; with cold ones also against
// reading memory.
#include <algorithm>
#include <memory>

#include "base/check.h"
#include "bench.h"
#include "matmul_lines.h"
#include "ops/matmul.h"
#include "short_line.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kMatmulRounds = 25;
constexpr int kQuickMatmulRounds = 5;

// The matrix of a line, as often as it takes to be cold, with rows to multiply it by.
class MatmulWorld {
 public:
  MatmulWorld(const MatmulLine& line, Exec& exec)
      : exec_(exec), rows_(line.rows), gate_and_up_(line.gate_and_up), activations_(line.rows, line.inputs) {
    pack(line);
    const int64_t columns = line.gate_and_up ? line.outputs / 2 : line.outputs;
    results_.resize(static_cast<size_t>(rows_ * columns));
    out_ = {results_.data(), rows_, columns, columns};
    in_ = activations_.view(line.inputs, weights_[0].forms());
    fill_activations(line.inputs);
  }

  void run() {
    const ops::PackedMatrix& weights = weights_[next_++ % weights_.size()];
    const auto store = gate_and_up_ ? ops::Store::silu_mul : ops::Store::set;
    ops::matmul({.weights = &weights, .in = in_, .out = out_, .store = store, .live_rows = &rows_}, exec_);
  }

 private:
  void pack(const MatmulLine& line) {
    const auto bytes = static_cast<size_t>(bytes_of(line.type, line.inputs * line.outputs));
    const std::vector<std::byte> file(bytes, std::byte{0x21});  // small numbers in every type, scales of 0.01
    const int64_t outputs = line.gate_and_up ? line.outputs / 2 : line.outputs;
    const ops::WeightView views[] = {{line.type, file.data(), outputs, line.inputs},
                                     {line.type, file.data(), outputs, line.inputs}};
    const size_t copies = line.cold ? 4 * std::max(last_level_cache_bytes(), size_t{32} << 20) / bytes + 2 : 1;
    using Join = ops::PackedMatrix::Join;
    for (size_t i = 0; i < copies; ++i)
      weights_.emplace_back(std::span(views, line.gate_and_up ? 2 : 1),
                            line.gate_and_up ? Join::gate_and_up : Join::stack, exec_);
  }

  void fill_activations(int64_t inputs) {
    std::vector<float> x(static_cast<size_t>(rows_ * inputs));
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i % 201) - 1.0f;
    ops::quantise({.in = {x.data(), rows_, inputs, inputs}, .out = in_, .live_rows = &rows_}, exec_);
  }

  Exec& exec_;
  int32_t rows_;
  bool gate_and_up_;
  ops::ActivationBuffer activations_;
  ops::ActivationRows in_{};
  std::vector<ops::PackedMatrix> weights_;
  std::vector<float> results_;
  Rows<float> out_{};
  size_t next_ = 0;
};

// The instruction sets whose peaks bound integer products. Tiles of bytes take twice the depth of tiles of bf16.
std::vector<Isa> integer_isas() {
  std::vector<Isa> isas;
  for (Isa isa : available_isas())
    if (isa == Isa::avx512vnni || isa == Isa::amx) isas.push_back(isa);
  return isas;
}

double integer_peak(const MachineLimits& limits) {
  double peak = 0;
  for (const IsaPeak& p : limits.peaks) peak = std::max(peak, p.isa == Isa::amx ? 2 * p.flops : p.flops);
  return peak;
}

Result result_of(const MatmulLine& line, const ShortLine& timed, const MachineLimits& limits) {
  const Work work = work_of(line);
  const double seconds = median(timed.samples), peak = integer_peak(limits);
  const double reading = line.cold ? work.bytes / limits.read_bytes : 0, computing = peak > 0 ? work.flops / peak : 0;
  Result result{.name = timed.name,
                .median_us = seconds * 1e6,
                .limit_us = {},
                .gbps = work.bytes / seconds / 1e9,
                .tflops = work.flops / seconds / 1e12};
  if (reading > 0 || computing > 0) result.limit_us = std::max(reading, computing) * 1e6;
  return result;
}

}  // namespace

Report bench_matmul(const BenchOptions& options) {
  Exec exec({.threads = options.threads, .isa = options.isas.empty() ? best_isa() : options.isas.back()});
  std::vector<MatmulLine> chosen = matmul_lines(options.quick);
  std::erase_if(chosen, [&](const MatmulLine& line) { return name(line).find(options.filter) == std::string::npos; });
  check(!chosen.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");

  std::vector<ShortLine> lines;
  for (const MatmulLine& line : chosen) {
    const auto world = std::make_shared<MatmulWorld>(line, exec);
    lines.push_back({.name = name(line), .seconds = in_a_loop([world] { world->run(); })});
  }
  LimitSampler sampler(exec, integer_isas());
  measure(lines, options.repeat ? options.repeat : options.quick ? kQuickMatmulRounds : kMatmulRounds, sampler, exec);
  Report report{sampler.limits(), "", {}};
  for (size_t i = 0; i < lines.size(); ++i) report.results.push_back(result_of(chosen[i], lines[i], report.machine));
  return report;
}

}  // namespace quire::bench
