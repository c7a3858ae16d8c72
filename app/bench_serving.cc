// `quire bench serving`: a load on a server of OpenAI's or SGLang's interface, quire's or another's, over HTTP.
//
// The clock of a request runs from the moment that it was to begin to its last byte; the first token is the first event
// with text. Output tokens are what the server says that it made; where it does not say, events with text.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <memory>

#include "base/check.h"
#include "base/exec.h"
#include "base/in_quotes.h"
#include "commands.h"
#include "report.h"
#include "sampling_options.h"
#include "serving_client.h"
#include "serving_figures.h"
#include "serving_load.h"

namespace quire::bench {
namespace {

struct ServingOptions {
  std::string url = "http://127.0.0.1:30000";
  std::string endpoint = "completions";
  std::string prompt_tokens = "128";
  std::string api_key, json;
  LoadShape shape;
  ClientOptions client;
};

int32_t count_from(std::string_view text, std::string_view whole) {
  int32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  check(error == std::errc() && end == text.data() + text.size() && count >= 1 && count <= 1 << 20, "--prompt-tokens ",
        whole, " is not a count, or two as in 200:1500");
  return count;
}

LoadShape shape_of(const ServingOptions& options) {
  LoadShape shape = options.shape;
  shape.endpoint = endpoint_from(options.endpoint);
  const std::string_view lengths = options.prompt_tokens;
  const size_t colon = lengths.find(':');
  shape.least_prompt = count_from(lengths.substr(0, colon), lengths);
  shape.most_prompt = colon == lengths.npos ? shape.least_prompt : count_from(lengths.substr(colon + 1), lengths);
  return shape;
}

// With a limit of time alone, there is none of requests.
ClientOptions client_of(const ServingOptions& options) {
  ClientOptions client = options.client;
  client.address = address_from(options.url);
  client.arrivals.seed = options.shape.seed;
  if (client.arrivals.requests == 0 && client.arrivals.seconds == 0) client.arrivals.requests = 4 * client.concurrency;
  return client;
}

std::string name_of(const ServingOptions& options, const LoadShape& shape) {
  std::string name = cat("serving/concurrency=", options.client.concurrency, "/", name_of(shape));
  if (shape.endpoint != Endpoint::completions) name += cat("/endpoint=", options.endpoint);
  if (options.client.idle_connections > 0) name += cat("/idle=", options.client.idle_connections);
  return name;
}

void print_waiting(const char* what, const std::optional<Waiting>& waiting) {
  if (waiting) std::printf("  %-12s  %10.2f  %10.2f\n", what, waiting->median * 1e3, waiting->p99 * 1e3);
}

void print(const ServingFigures& figures, const LoadOutcome& outcome, const ServingOptions& options,
           const std::string& name) {
  std::printf("%s\n\n  %.1f output tokens a second\n", name.c_str(), figures.tokens_per_second());
  std::printf(
      "  %lld requests in %.2f s, %lld of them failed; %lld prompt tokens (%lld from the cache), %lld output\n\n",
      static_cast<long long>(figures.requests), figures.seconds, static_cast<long long>(figures.failed),
      static_cast<long long>(figures.prompt_tokens), static_cast<long long>(figures.cached_tokens),
      static_cast<long long>(figures.output_tokens));
  std::printf("  %-12s  %10s  %10s\n", "ms", "median", "p99");
  print_waiting("first token", figures.first_token);
  print_waiting("inter-token", figures.inter_token);
  print_waiting("request", figures.request);
  if (options.client.idle_connections > 0)
    std::printf("\n  %d of %d idle connections are still open\n", outcome.idle_at_end, options.client.idle_connections);
  if (!figures.first_error.empty())
    std::printf("\n  the first failure: %s\n", in_quotes(figures.first_error, 400).c_str());
  std::fflush(stdout);
}

// The machine is measured while no load runs.
MachineLimits machine() {
  Exec exec;
  return LimitSampler(exec, {}).limits();
}

void bench_serving(const ServingOptions& options, const std::string& command) {
  const ClientOptions client = client_of(options);
  const LoadShape shape = shape_of(options);
  const Load load(shape, client.address.text(), options.api_key);
  const LoadOutcome outcome = run_load(load, client);
  check(!outcome.requests.empty(), "no request was sent");
  const ServingFigures figures = figures_of(outcome);
  const std::string name = name_of(options, shape);
  print(figures, outcome, options, name);
  if (!options.json.empty()) write_json({machine(), command, results_of(figures, name)}, options.json);
  check(figures.failed < figures.requests, "every request failed");
}

void add_load_options(CLI::App& app, ServingOptions& options) {
  LoadShape& shape = options.shape;
  const CLI::Range count(1, 1 << 20);
  app.add_option("--endpoint", options.endpoint, "completions, chat or generate (SGLang's)")
      ->capture_default_str()
      ->check(CLI::IsMember({"completions", "chat", "generate"}));
  app.add_option("--prompt-tokens", options.prompt_tokens, "length of prompts, N or LEAST:MOST")->capture_default_str();
  app.add_option(
         "--shared-prefix-tokens", shape.shared_tokens,
         "tokens that all prompts begin with; a shorter prompt has as many of them as fit before its last token")
      ->check(count);
  app.add_option("--output-tokens", shape.output_tokens, "new tokens of a request")
      ->capture_default_str()
      ->check(count);
  app.add_flag("--ignore-eos", shape.ignore_eos, "go on after the model's end token");
  app.add_flag("--words", shape.words, "prompts of plain words in place of token ids");
  app.add_option("--vocabulary", shape.vocabulary, "token ids are below this")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24));
  app.add_option("--seed", shape.seed, "the same seed gives the same load")->capture_default_str()->check(seed_range());
  app.add_option("--model", shape.model, "the model's name, for servers that want one");
  app.add_option("--extra-request-body", shape.more, "a JSON object that is merged into the body of each request");
}

void add_client_options(CLI::App& app, ServingOptions& options) {
  ClientOptions& client = options.client;
  app.add_option("--url", options.url, "the server")->capture_default_str();
  app.add_option("--api-key", options.api_key, "the server's key");
  app.add_option("--concurrency", client.concurrency, "requests that are under way together, at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app.add_option("--requests", client.arrivals.requests, "how many; default: four for each that is under way together")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--seconds", client.arrivals.seconds, "no request begins after this time")->check(CLI::PositiveNumber);
  app.add_option("--request-rate", client.arrivals.rate,
                 "requests a second, at random moments; default: the next one begins when one has ended")
      ->check(CLI::PositiveNumber);
  app.add_option("--idle-connections", client.idle_connections,
                 "connections beside that have had an answer and do nothing")
      ->check(CLI::Range(1, 1 << 16));
}

}  // namespace

void add_serving(CLI::App& bench, const std::string& command) {
  CLI::App* app = bench.add_subcommand("serving", "a load on a running server, over HTTP");
  const auto options = std::make_shared<ServingOptions>();
  options->client.arrivals.requests = 0;
  add_client_options(*app, *options);
  add_load_options(*app, *options);
  app->add_option("--json", options->json, "also write the results to this file");
  app->callback([=] { bench_serving(*options, command); });
}

}  // namespace quire::bench
