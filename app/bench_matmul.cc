// Products with weights that a cache holds are held against the instruction set's fastest products of bytes; with cold
// ones also against reading memory.
#include <algorithm>
#include <map>
#include <memory>

#include "base/check.h"
#include "bench.h"
#include "gather.h"
#include "matmul_lines.h"
#include "ops/matmul.h"
#include "short_line.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kMatmulRounds = 15;
constexpr int kQuickMatmulRounds = 3;

using Teams = std::map<Isa, std::unique_ptr<Exec>>;

// A matrix, as often as it takes to be cold.
class PackedCopies {
 public:
  PackedCopies(const MatmulMatrix& matrix, bool cold, Exec& exec) {
    const auto bytes = static_cast<size_t>(bytes_of(matrix.type, matrix.inputs * matrix.outputs));
    const std::vector<std::byte> file(bytes, std::byte{0x21});  // small numbers in every type, scales of 0.01
    const int64_t outputs = matrix.gate_and_up ? matrix.outputs / 2 : matrix.outputs;
    const ops::WeightView views[] = {{matrix.type, file.data(), outputs, matrix.inputs},
                                     {matrix.type, file.data(), outputs, matrix.inputs}};
    const size_t copies = cold ? 4 * std::max(last_level_cache_bytes(), size_t{32} << 20) / bytes + 2 : 1;
    using Join = ops::PackedMatrix::Join;
    for (size_t i = 0; i < copies; ++i)
      copies_.emplace_back(std::span(views, matrix.gate_and_up ? 2 : 1),
                           matrix.gate_and_up ? Join::gate_and_up : Join::stack, exec);
  }
  const ops::PackedMatrix& next() { return copies_[next_++ % copies_.size()]; }

 private:
  std::vector<ops::PackedMatrix> copies_;
  size_t next_ = 0;
};

// The rows of a line, and where their results go.
class MatmulWorld {
 public:
  MatmulWorld(const MatmulLine& line, std::shared_ptr<PackedCopies> weights, Exec& exec)
      : exec_(exec),
        rows_(line.rows),
        gate_and_up_(line.matrix.gate_and_up),
        weights_(std::move(weights)),
        activations_(line.rows, line.matrix.inputs) {
    const int64_t inputs = line.matrix.inputs, columns = line.matrix.outputs / (gate_and_up_ ? 2 : 1);
    results_.resize(static_cast<size_t>(rows_ * columns));
    out_ = {results_.data(), rows_, columns, columns};
    in_ = activations_.view(inputs, weights_->next().forms());
    std::vector<float> x(static_cast<size_t>(rows_ * inputs));
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i % 201) - 1.0f;
    ops::quantise({.in = {x.data(), rows_, inputs, inputs}, .out = in_, .live_rows = &rows_}, exec_);
  }

  double seconds(int64_t calls) {
    gather(exec_);
    return seconds_of([&] {
      for (int64_t i = 0; i < calls; ++i) run();
    });
  }

 private:
  void run() {
    const auto store = gate_and_up_ ? ops::Store::silu_mul : ops::Store::set;
    ops::matmul({.weights = &weights_->next(), .in = in_, .out = out_, .store = store, .live_rows = &rows_}, exec_);
  }

  Exec& exec_;
  int32_t rows_;
  bool gate_and_up_;
  std::shared_ptr<PackedCopies> weights_;
  ops::ActivationBuffer activations_;
  ops::ActivationRows in_{};
  std::vector<float> results_;
  Rows<float> out_{};
};

Result result_of(const MatmulLine& line, const ShortLine& timed, const MachineLimits& limits) {
  const Work work = work_of(line);
  const double seconds = median(timed.samples);
  return {.name = timed.name,
          .median_us = seconds * 1e6,
          .limit_us = limit_seconds(line, limits) * 1e6,
          .gbps = work.bytes / seconds / 1e9,
          .tflops = work.flops / seconds / 1e12};
}

// A group's memory is given back when its timings are known.
std::vector<ShortLine> measured(const std::vector<MatmulLine>& group, const Teams& teams, int rounds,
                                LimitSampler& sampler) {
  std::shared_ptr<PackedCopies> copies[2];  // warm, cold
  std::vector<ShortLine> lines;
  for (const MatmulLine& line : group) {
    Exec& exec = *teams.at(line.isa);
    auto& weights = copies[line.cold];
    if (!weights) weights = std::make_shared<PackedCopies>(line.matrix, line.cold, exec);
    const auto world = std::make_shared<MatmulWorld>(line, weights, exec);
    lines.push_back(
        {.name = name(line, best_isa()), .seconds = [world](int64_t calls) { return world->seconds(calls); }});
  }
  measure(lines, rounds, sampler, *teams.at(group.back().isa));
  for (ShortLine& line : lines) line.seconds = nullptr;
  return lines;
}

std::vector<std::vector<MatmulLine>> chosen_groups(std::span<const Isa> isas, const BenchOptions& options) {
  auto groups = matmul_groups(isas, options.quick);
  for (auto& group : groups)
    std::erase_if(group, [&](const MatmulLine& line) {
      return name(line, best_isa()).find(options.filter) == std::string::npos;
    });
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  check(!groups.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");
  return groups;
}

}  // namespace

Report bench_matmul(const BenchOptions& options) {
  const std::vector<Isa> isas = options.isas.empty() ? product_isas(available_isas()) : options.isas;
  check(!isas.empty(), "this machine has no instruction set with products of its own");
  Teams teams;
  for (const Isa isa : isas)
    teams.emplace(isa, std::make_unique<Exec>(ExecOptions{.threads = options.threads, .isa = isa}));
  const auto groups = chosen_groups(isas, options);
  LimitSampler sampler(*teams.at(isas.back()), isas, Products::bytes);
  const int rounds = options.repeat ? options.repeat : options.quick ? kQuickMatmulRounds : kMatmulRounds;
  std::vector<std::vector<ShortLine>> timed;
  for (const auto& group : groups) timed.push_back(measured(group, teams, rounds, sampler));
  Report report{sampler.limits(), "", {}};
  for (size_t g = 0; g < groups.size(); ++g)
    for (size_t i = 0; i < groups[g].size(); ++i)
      report.results.push_back(result_of(groups[g][i], timed[g][i], report.machine));
  return report;
}

}  // namespace quire::bench
