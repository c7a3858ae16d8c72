#include "bench.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/check.h"
#include "base/cuda.h"
#include "base/cuda_absence.h"
#include "commands.h"
#include "device_choice.h"
#include "session.h"

namespace quire::bench {
namespace {

struct Request {
  BenchOptions options;
  std::vector<std::string> isa_names;
  std::string json;
};

void check_device(const std::string& device) {
  if (device == "cuda" && cuda::devices() == 0) throw UnusableDevice(cat("--device cuda: ", cuda::why_no_device()));
}

CLI::App* add_benchmark(CLI::App& bench, const std::string& name, const std::string& help, const std::string& command,
                        Report (*run)(const BenchOptions&), const std::shared_ptr<Request>& request) {
  CLI::App* app = bench.add_subcommand(name, help);
  BenchOptions& options = request->options;
  add_threads_option(*app, options.threads);
  app->add_option("--filter", options.filter, "only lines whose name contains this");
  app->add_option("--repeat", options.repeat, "samples of each line")->check(CLI::Range(1, 100000));
  app->add_option("--json", request->json, "also write the results to this file");
  app->add_flag("--quick", options.quick, "fewer lines and samples");
  app->callback([=] {
    check_device(request->options.device);
    for (const std::string& isa : request->isa_names) request->options.isas.push_back(isa_from(isa));
    Report report = run(request->options);
    report.command = command;
    print_table(report, std::cout);
    if (!request->json.empty()) write_json(report, request->json);
  });
  return app;
}

void add_device(CLI::App& app, BenchOptions& options) {
  app.add_option("--device", options.device, "cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

}  // namespace

void add_bench(CLI::App& app, const std::string& command) {
  CLI::App* bench = app.add_subcommand("bench", "measure speed, beside what the machine allows");
  bench->require_subcommand(1);

  const auto attention = std::make_shared<Request>();
  const auto run_attention = [](const BenchOptions& options) {
    return options.device == "cuda" ? bench_gpu_attention(options) : bench_attention(options);
  };
  CLI::App* const attention_app =
      add_benchmark(*bench, "attention", "decode, prefill and tree verification", command, run_attention, attention);
  add_device(*attention_app, attention->options);
  attention_app
      ->add_option("--isa", attention->isa_names, "instruction set, may be repeated; default: all that work here")
      ->check(CLI::IsMember({"plain", "avx2", "avx512", "avx512bf16", "amx"}));
  const auto matmul = std::make_shared<Request>();
  const auto run_matmul = [](const BenchOptions& options) {
    return options.device == "cuda" ? bench_gpu_matmul(options) : bench_matmul(options);
  };
  CLI::App* const matmul_app =
      add_benchmark(*bench, "matmul", "products of matrices with few and many rows", command, run_matmul, matmul);
  add_device(*matmul_app, matmul->options);
  matmul_app
      ->add_option("--isa", matmul->isa_names,
                   "instruction set, may be repeated; default: those with products of their own")
      ->check(CLI::IsMember({"plain", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"}));
  const auto metadata = std::make_shared<Request>();
  const auto run_metadata = [](const BenchOptions& options) {
    return options.device == "cuda" ? bench_gpu_metadata(options) : bench_metadata(options);
  };
  add_device(*add_benchmark(*bench, "metadata", "step metadata, arena, graph replay, thread team", command,
                            run_metadata, metadata),
             metadata->options);
  const auto sampling = std::make_shared<Request>();
  add_device(*add_benchmark(*bench, "sampling", "from logits to tokens", command, bench_sampling, sampling),
             sampling->options);
  add_throughput(*bench, command);
  add_serving(*bench, command);
  add_profile(*bench, command);
  add_speculation(*bench, command);
}

}  // namespace quire::bench
