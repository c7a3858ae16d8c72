// `quire bench profile`: where the time of a step goes, by kind of operation.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <set>

#include "base/check.h"
#include "base/op_times.h"
#include "commands.h"
#include "machine_limits.h"
#include "model_client.h"
#include "progress.h"
#include "report.h"
#include "session.h"

namespace quire::bench {
namespace {

struct ProfileOptions {
  SessionOptions session;
  std::vector<int32_t> depths = {0, 1024, 4096};
  std::vector<int32_t> prompts;
  int32_t batch = 1;
  int32_t steps = 128;
  std::string json;
};

std::string share(double part, double whole, int64_t calls) {
  char text[64];
  std::snprintf(text, sizeof text, "%5.2f %% of the step, %lld calls", 100 * part / whole,
                static_cast<long long>(calls));
  return text;
}

Result line(const std::string& name, double seconds, const std::string& note) {
  return {.name = name, .median_us = seconds * 1e6, .limit_us = {}, .gbps = {}, .tflops = {}, .note = note};
}

// Mean times of `steps` steps that body() makes. What the kinds do not add up to is scheduling, sampling and listeners.
template <class Body>
void profile(Session& session, const std::string& name, int32_t steps, Body body, std::vector<Result>& results) {
  OpTimes times;
  session.exec.keep_times(&times);
  const Clock::time_point begin = Clock::now();
  body();
  const double step = seconds_between(begin, Clock::now()) / steps;
  session.exec.keep_times(nullptr);

  const std::set<std::string> products_and_attention = {"Matmul", "Logits", "AddWithinReach", "Attend"};
  double inside = 0, all = 0;
  for (const OpTimes::Entry& entry : times.entries()) {
    const double seconds = entry.seconds / steps;
    results.push_back(line(cat(name, "/", entry.kind), seconds, share(seconds, step, entry.calls / steps)));
    all += seconds;
    if (products_and_attention.contains(entry.kind)) inside += seconds;
  }
  results.push_back(line(name + "/between_operations", step - all, share(step - all, step, 1)));
  results.push_back(line(name + "/outside_products_and_attention", step - inside, share(step - inside, step, 1)));
  results.push_back(line(name + "/step", step, ""));
}

void profile_decode(Session& session, int32_t batch, int32_t depth, int32_t steps, std::vector<Result>& results) {
  PromptMaker prompts(session.engine.options().vocabulary);
  session.engine.flush_cache();
  std::vector<std::unique_ptr<ModelClient>> clients;
  for (int32_t i = 0; i < batch; ++i)
    clients.push_back(std::make_unique<ModelClient>(session.engine, prompts.make(std::max(depth, 1)), 2 * steps + 64));
  for (const auto& client : clients) client->step_until_tokens(1);
  const auto decode = [&] {
    for (int32_t i = 0; i < steps; ++i) check(session.engine.step(), "the answers ended before the steps did");
  };
  profile(session, cat("profile/decode/batch=", batch, "/depth=", depth), steps, decode, results);
}

void profile_prefill(Session& session, int32_t tokens, std::vector<Result>& results) {
  PromptMaker prompts(session.engine.options().vocabulary);
  session.engine.flush_cache();
  const ModelClient client(session.engine, prompts.make(tokens), 1);
  profile(
      session, cat("profile/prefill/tokens=", tokens), 1, [&] { client.step_until_finished(); }, results);
}

Report bench_profile(const ProfileOptions& options) {
  SessionOptions wanted = options.session;
  if (wanted.speculative_algorithm.empty()) wanted.speculative_algorithm = "NONE";  // a step is one of each token
  wanted.engine.max_running_requests = options.batch;
  Session session(wanted);
  LimitSampler sampler(session.exec, {});
  sampler.sample();
  Report report{sampler.limits(), "", {}};
  Progress progress;
  for (const int32_t depth : options.depths) {
    progress.say(cat("decode after ", depth, " tokens"));
    profile_decode(session, options.batch, depth, options.steps, report.results);
  }
  for (const int32_t tokens : options.prompts) {
    progress.say(cat("prefill of ", tokens, " tokens"));
    profile_prefill(session, tokens, report.results);
  }
  return report;
}

}  // namespace

void add_profile(CLI::App& bench, const std::string& command) {
  CLI::App* app = bench.add_subcommand("profile", "where the time of a step goes, by kind of operation");
  const auto options = std::make_shared<ProfileOptions>();
  app->add_option("--depth", options->depths, "tokens before those that are profiled, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--prompt-tokens", options->prompts, "prompts whose prefill is profiled too, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--batch", options->batch, "sequences that decode together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app->add_option("--steps", options->steps, "decode steps")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  app->add_option("--json", options->json, "also write the results to this file");
  add_session_options(*app, options->session);
  app->callback([=] {
    Report report = bench_profile(*options);
    report.command = command;
    print_table(report, std::cout);
    if (!options->json.empty()) write_json(report, options->json);
  });
}

}  // namespace quire::bench
