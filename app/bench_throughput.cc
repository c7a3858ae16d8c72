// `quire bench throughput`: a whole model, from token ids to token ids, through the engine that also serves.
//
// The clock runs over engine steps on the calling thread: scheduling, forward passes and sampling are in it, text and
// sockets are not. Prompts are seeded random ids and are never answered from the prefix cache, except where a line says
// that it shares a prefix.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "base/check.h"
#include "commands.h"
#include "gpu_limits.h"
#include "machine_limits.h"
#include "model_client.h"
#include "progress.h"
#include "report.h"
#include "session.h"
#include "throughput_lines.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kThroughputRounds = 3;

struct ThroughputOptions {
  SessionOptions session;
  ThroughputShape shape;
  std::string filter;
  int repeat = kThroughputRounds;
  std::string json;
};

// What was not said about the engine follows from the lines.
SessionOptions session_options(const ThroughputOptions& options) {
  SessionOptions session = options.session;
  if (session.speculative_algorithm.empty()) session.speculative_algorithm = "NONE";  // a step is one of each token
  session.engine.max_running_requests = options.shape.most_sequences();
  if (!session.engine.max_total_tokens) session.engine.max_total_tokens = options.shape.most_total_tokens();
  return session;
}

bool fits(const Experiment& experiment, const Session& session) {
  const engine::EngineOptions& engine = session.engine.options();
  const bool fit = experiment.longest <= std::min(engine.context, engine.max_total_tokens);
  if (!fit)
    std::cerr << "quire: " << experiment.lines.front().name << " is left out: it takes " << experiment.longest
              << " tokens, and the context has " << engine.context << '\n';
  return fit;
}

// From the files to an engine that takes requests: weights are read and laid out, memory is taken, graphs are captured.
// What is not in the page cache is read from the disk, so it counts only where a run before has read it all.
Experiment ready_line(double seconds) {
  return {{{"throughput/ready", 0, 0}}, 0, [=] { return std::vector{seconds}; }};
}

std::vector<Experiment> chosen_experiments(const ThroughputOptions& options, Session& session, double ready) {
  std::vector<Experiment> all = throughput_experiments(options.shape, session), chosen;
  all.insert(all.begin(), ready_line(ready));
  for (Experiment& experiment : all) {
    const auto wanted = [&](const ThroughputLine& line) { return line.name.find(options.filter) != std::string::npos; };
    if (std::any_of(experiment.lines.begin(), experiment.lines.end(), wanted) && fits(experiment, session))
      chosen.push_back(std::move(experiment));
  }
  check(!chosen.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");
  return chosen;
}

// The first steps record graphs and touch memory for the first time.
void warm_up(Session& session) {
  PromptMaker prompts(session.engine.options().vocabulary);
  const ModelClient client(session.engine, prompts.make(64), 8);
  client.step_until_finished();
}

// What was measured is said at once: the table comes at the end, which somebody may not wait for.
void measure(std::vector<Experiment>& experiments, int rounds, LimitSampler& limits) {
  Progress progress;
  for (int round = 0; round < rounds; ++round)
    for (Experiment& experiment : experiments) {
      progress.say(cat("round ", round + 1, " of ", rounds, ": ", experiment.lines.front().name));
      const std::vector<double> seconds = experiment.run();
      progress.clear();
      for (size_t i = 0; i < seconds.size(); ++i) {
        experiment.lines[i].samples.push_back(seconds[i]);
        std::fprintf(stderr, "quire: round %d of %d: %s: %.1f us\n", round + 1, rounds,
                     experiment.lines[i].name.c_str(), seconds[i] * 1e6);
      }
      limits.sample();
    }
}

Result result_of(const ThroughputLine& line, const Report& report) {
  const double seconds = median(line.samples);
  Result result{.name = line.name, .median_us = seconds * 1e6, .limit_us = {}, .gbps = {}, .tflops = {}};
  if (report.gpu) result.device = "cuda";
  if (line.tokens > 0) result.tokens_per_s = line.tokens / seconds;
  if (line.bytes > 0) {
    const MachineLimits& host = report.machine;
    const double limit =
        report.gpu ? line.bytes / *report.gpu->read_bytes : limit_seconds({line.bytes, 0}, host, host.isa);
    result.limit_us = limit * 1e6;
    result.gbps = line.bytes / seconds / 1e9;
  }
  return result;
}

std::optional<GpuLimits> gpu_limits(const Session& session) {
  if (!session.stream) return std::nullopt;
  return GpuLimits{.name = cuda::device_name(), .read_bytes = gpu_read_bytes(*session.stream)};
}

Report bench_throughput(const ThroughputOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Session session(session_options(options));
  const std::chrono::duration<double> ready = std::chrono::steady_clock::now() - start;
  std::vector<Experiment> experiments = chosen_experiments(options, session, ready.count());
  warm_up(session);
  LimitSampler sampler(session.exec, {});
  measure(experiments, options.repeat, sampler);
  Report report{sampler.limits(), "", {}, gpu_limits(session)};
  for (const Experiment& experiment : experiments)
    for (const ThroughputLine& line : experiment.lines) report.results.push_back(result_of(line, report));
  return report;
}

}  // namespace

void add_throughput(CLI::App& bench, const std::string& command) {
  CLI::App* app = bench.add_subcommand("throughput", "a whole model: prefill, decode, many sequences, latencies");
  const auto options = std::make_shared<ThroughputOptions>();
  ThroughputShape& shape = options->shape;
  const CLI::Range count(1, 1 << 20);
  app->add_option("--prompt-tokens", shape.prompts, "lengths of the prefill lines, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(count);
  app->add_option("--depth", shape.depths, "tokens before those of a decode line, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--concurrency", shape.concurrency, "sequences that run together, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app->add_option("--batch-prompt-tokens", shape.batch_prompt,
                  "tokens before those of a line that runs several sequences")
      ->capture_default_str()
      ->check(count);
  app->add_option("--output-tokens", shape.new_tokens, "new tokens of a sequence")->capture_default_str()->check(count);
  app->add_option("--repeat", options->repeat, "samples of each line")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app->add_option("--filter", options->filter, "only lines whose name contains this");
  app->add_option("--json", options->json, "also write the results to this file");
  add_session_options(*app, options->session);
  app->callback([=] {
    Report report = bench_throughput(*options);
    report.command = command;
    print_table(report, std::cout);
    if (!options->json.empty()) write_json(report, options->json);
  });
}

}  // namespace quire::bench
