// `quire bench speculation`: t(n), the time of a step that verifies n tokens of one text over that of a step of one
// token. What a draft must be worth follows from it.
//
// The rows are the newest token and n - 1 drafts behind a text of some depth, with logits on all of them. The clock
// runs over the forward pass, from filled pages to logits; drawing tokens is not in it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "commands.h"
#include "engine/runner.h"
#include "kv/page_pool.h"
#include "machine_limits.h"
#include "model_client.h"
#include "model_path.h"
#include "progress.h"
#include "report.h"
#include "session.h"
#include "timing.h"

namespace quire::bench {
namespace {

struct SpeculationOptions {
  SessionOptions session;
  std::vector<int32_t> depths = {0, 1024, 4096};
  int32_t most_rows = 16;
  int repeat = 15;
  std::string json;
};

// One text in pages of its own, and steps behind it that all write to the same places.
class DraftWorld {
 public:
  DraftWorld(const model::Model& model, Dtype kv_type, int32_t longest, int32_t most_rows, Exec& exec)
      : limits_{.context = longest,
                .pages = kPageSize.pages_for(longest),
                .page_size = kPageSize,
                .running = 1,
                .prefill_chunk = kChunk,
                .mixed_chunk = kChunk,
                .prefix_cache = false,
                .drafts = most_rows - 1},
        tokens_(PromptMaker(model.config().vocabulary).make(longest)),
        pool_(limits_.pages + 1, kPageSize),
        table_(pool_, 2, longest),
        runner_(model, limits_, kv_type, table_, exec),
        row_(table_.open()) {
    check(table_.reserve(row_, {longest}), "no pages for ", longest, " tokens");
  }

  void compute_text(int32_t depth) {
    for (; computed_ < depth; computed_ += std::min(kChunk, depth - computed_))
      runner_.run(
          batch_of({.id = 1, .row = row_, .position = computed_, .count = std::min(kChunk, depth - computed_)}));
  }
  void verify(int32_t rows) {
    runner_.run(
        batch_of({.id = 1, .row = row_, .position = computed_, .count = rows, .drafts = rows - 1, .draws = true}));
  }

 private:
  static constexpr int32_t kChunk = 512;
  inline static const PageSize kPageSize{16};

  engine::Batch batch_of(engine::Share share) const {
    std::vector<engine::DraftToken> drafts;
    for (int32_t p = share.text_end(); p < share.end(); ++p) drafts.push_back({.token = tokens_[p], .hit = 1});
    engine::Batch batch;
    const auto text = std::span<const int32_t>(tokens_).first(share.text_end());
    batch.add(std::move(share), text, drafts);
    return batch;
  }

  engine::SchedulerLimits limits_;
  std::vector<int32_t> tokens_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  engine::Runner runner_;
  RequestRow row_;
  int32_t computed_ = 0;
};

// All numbers of rows in turns, so that a slow moment is nobody's alone.
std::vector<double> seconds_of_rows(DraftWorld& world, const SpeculationOptions& options) {
  constexpr int kStepsOfASample = 4;
  std::vector<std::vector<double>> samples(options.most_rows);
  for (int round = 0; round <= options.repeat; ++round)
    for (int32_t rows = 1; rows <= options.most_rows; ++rows) {
      const double seconds = seconds_of([&] {
        for (int step = 0; step < kStepsOfASample; ++step) world.verify(rows);
      });
      if (round > 0) samples[rows - 1].push_back(seconds / kStepsOfASample);  // the first warms up
    }
  std::vector<double> medians;
  for (const std::vector<double>& of_rows : samples) medians.push_back(median(of_rows));
  return medians;
}

void add_lines(int32_t depth, const std::vector<double>& seconds, std::vector<Result>& results) {
  for (size_t i = 0; i < seconds.size(); ++i) {
    char note[64];
    std::snprintf(note, sizeof note, "t(%zu) = %.2f", i + 1, seconds[i] / seconds[0]);
    results.push_back({.name = cat("speculation/depth=", depth, "/rows=", i + 1),
                       .median_us = seconds[i] * 1e6,
                       .limit_us = {},
                       .gbps = {},
                       .tflops = {},
                       .note = note});
  }
}

Report bench_speculation(const SpeculationOptions& options) {
  Exec exec({.threads = options.session.threads, .isa = usable_isa(options.session.isa)});
  const model::Model model = load_model(model_path(options.session.model), exec);
  LimitSampler sampler(exec, {});
  sampler.sample();
  Report report{sampler.limits(), "", {}};
  Progress progress;
  for (const int32_t depth : options.depths) {
    const int32_t longest = depth + options.most_rows;
    check(longest <= model.config().context, "a depth of ", depth, " tokens, and a context of ",
          model.config().context);
    progress.say(cat("steps after ", depth, " tokens"));
    DraftWorld world(model, kv_type_from(options.session.kv_type), longest, options.most_rows, exec);
    world.compute_text(depth);
    add_lines(depth, seconds_of_rows(world, options), report.results);
  }
  return report;
}

}  // namespace

void add_speculation(CLI::App& bench, const std::string& command) {
  CLI::App* app = bench.add_subcommand("speculation", "what a step costs by the drafts that it verifies: t(n)");
  const auto options = std::make_shared<SpeculationOptions>();
  app->add_option("--depth", options->depths, "tokens before those that are verified, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--rows", options->most_rows, "most tokens that a step verifies")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app->add_option("--repeat", options->repeat, "samples of each line")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app->add_option("--json", options->json, "also write the results to this file");
  add_model_option(*app, options->session.model);
  add_threads_option(*app, options->session.threads);
  add_kv_type_option(*app, options->session.kv_type);
  add_isa_option(*app, options->session.isa);
  app->callback([=] {
    Report report = bench_speculation(*options);
    report.command = command;
    print_table(report, std::cout);
    if (!options->json.empty()) write_json(report, options->json);
  });
}

}  // namespace quire::bench
