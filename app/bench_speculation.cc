// `quire bench speculation`: t(n), the time of a step that verifies n tokens of each text over that of a step of one
// token each. What a draft must be worth follows from it.
//
// The rows are the newest token and n - 1 drafts behind random texts of some depth, with logits on all of them. On a
// CPU the drafts are what the model itself says next, since what logits take depends on how sure it is (ops/logits.h).
// The clock runs over forward passes, from filled pages to logits; drawing tokens is not in it. A GPU's steps follow
// each other as they do where the host does not wait for them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "commands.h"
#include "device_choice.h"
#include "engine/runner.h"
#include "gpu_limits.h"
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
  std::vector<int32_t> depths = {0, 1024, 4096}, batches = {1};
  int32_t most_rows = 16;
  int repeat = 15;
  std::string json;
};

// Texts in pages of their own, and steps behind them that all write to the same places.
class DraftWorld {
 public:
  struct Shape {
    int32_t texts, longest, most_rows;
    Dtype kv_type;
    bool deterministic;
  };
  DraftWorld(const model::Model& model, const Shape& shape, Exec& exec)
      : exec_(exec),
        limits_{.context = shape.longest,
                .pages = shape.texts * kPageSize.pages_for(shape.longest),
                .page_size = kPageSize,
                .running = shape.texts,
                .prefill_chunk = kChunk,
                .mixed_chunk = kChunk,
                .prefix_cache = false,
                .drafts = shape.most_rows - 1},
        tokens_(PromptMaker(model.config().vocabulary).make(shape.longest)),
        pool_(limits_.pages + 1, kPageSize),
        table_(pool_, shape.texts + 1, shape.longest),
        runner_(model, limits_, shape.kv_type, table_, exec, nullptr, shape.deterministic) {
    for (int32_t i = 0; i < shape.texts; ++i) {
      rows_.push_back(table_.open());
      check(table_.reserve(rows_.back(), {shape.longest}), "no pages for ", shape.longest, " tokens");
    }
  }

  void compute_texts(int32_t depth) {
    for (; computed_ < depth; computed_ += std::min(kChunk, depth - computed_))
      for (const RequestRow row : rows_) {
        engine::Batch batch;
        add(batch, {.id = 1, .row = row, .position = computed_, .count = std::min(kChunk, depth - computed_)});
        runner_.run(batch);
      }
  }
  // So many rows as the model itself goes on, the likeliest token each time.
  void go_on_by_itself(int32_t rows) {
    for (int32_t at = computed_; at + 1 < computed_ + rows; ++at) {
      engine::Batch batch;
      add(batch, {.id = 1, .row = rows_[0], .position = at, .count = 1, .draws = true});
      const Rows<const float> logits = runner_.run(batch).logits;
      tokens_[at + 1] = static_cast<int32_t>(std::max_element(logits.data, logits.data + logits.dim) - logits.data);
    }
  }
  bool has_room_for(int32_t rows) const { return std::ssize(rows_) * (rows - 1) <= limits_.draft_rows(); }
  void verify(int32_t rows, int steps) {
    engine::Batch batch;
    for (const RequestRow row : rows_)
      add(batch, {.id = 1, .row = row, .position = computed_, .count = rows, .drafts = rows - 1, .draws = true});
    for (int step = 0; step < steps; ++step) runner_.run(batch);
    exec_.wait();
  }

 private:
  static constexpr int32_t kChunk = 512;
  inline static const PageSize kPageSize{16};

  void add(engine::Batch& batch, engine::Share share) const {
    std::vector<engine::DraftToken> drafts;
    for (int32_t p = share.text_end(); p < share.end(); ++p) drafts.push_back({.token = tokens_[p], .hit = 1});
    const auto text = std::span<const int32_t>(tokens_).first(share.text_end());
    batch.add(std::move(share), text, drafts);
  }

  Exec& exec_;
  engine::SchedulerLimits limits_;
  std::vector<int32_t> tokens_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  engine::Runner runner_;
  std::vector<RequestRow> rows_;
  int32_t computed_ = 0;
};

// All numbers of rows in turns, so that a slow moment is nobody's alone.
std::vector<double> seconds_of_rows(DraftWorld& world, const SpeculationOptions& options) {
  constexpr int kStepsOfASample = 8;
  int32_t most_rows = options.most_rows;
  while (!world.has_room_for(most_rows)) --most_rows;
  std::vector<std::vector<double>> samples(most_rows);
  for (int round = 0; round <= options.repeat; ++round)
    for (int32_t rows = 1; rows <= most_rows; ++rows) {
      const double seconds = seconds_of([&] { world.verify(rows, kStepsOfASample); });
      if (round > 0) samples[rows - 1].push_back(seconds / kStepsOfASample);  // the first warms up
    }
  std::vector<double> medians;
  for (const std::vector<double>& of_rows : samples) medians.push_back(median(of_rows));
  return medians;
}

void add_lines(int32_t batch, int32_t depth, const std::vector<double>& seconds, std::vector<Result>& results) {
  for (size_t i = 0; i < seconds.size(); ++i) {
    char note[64];
    std::snprintf(note, sizeof note, "t(%zu) = %.2f", i + 1, seconds[i] / seconds[0]);
    results.push_back(
        {.name = cat("speculation/", batch > 1 ? cat("batch=", batch, "/") : "", "depth=", depth, "/rows=", i + 1),
         .median_us = seconds[i] * 1e6,
         .limit_us = {},
         .gbps = {},
         .tflops = {},
         .note = note});
  }
}

Report bench_speculation(const SpeculationOptions& options) {
  const SessionOptions& session = options.session;
  const bool is_cuda = choose_device(session.device, gpu_facts()).device == Device::cuda;
  const std::unique_ptr<cuda::Stream> stream = is_cuda ? std::make_unique<cuda::Stream>() : nullptr;
  Exec exec({.threads = session.threads, .isa = usable_isa(session.isa), .stream = stream.get()});
  const model::Model model =
      load_model(model_path(session.model), exec, say_on_stderr,
                 session.load_format == "dummy" ? model::LoadFormat::dummy : model::LoadFormat::automatic);
  LimitSampler sampler(exec, {});
  sampler.sample();
  Report report{sampler.limits(), "", {}};
  if (is_cuda) report.gpu = GpuLimits{.name = cuda::device_name(), .read_bytes = gpu_read_bytes(*stream)};
  Progress progress;
  for (const int32_t batch : options.batches)
    for (const int32_t depth : options.depths) {
      const int32_t longest = depth + options.most_rows;
      check(longest <= model.config().context, "a depth of ", depth, " tokens, and a context of ",
            model.config().context);
      progress.say(cat("steps of ", batch, " after ", depth, " tokens"));
      DraftWorld world(model,
                       {.texts = batch,
                        .longest = longest,
                        .most_rows = options.most_rows,
                        .kv_type = kv_type_from(session.kv_type),
                        .deterministic = session.engine.deterministic},
                       exec);
      world.compute_texts(depth);
      if (!is_cuda) world.go_on_by_itself(options.most_rows);
      add_lines(batch, depth, seconds_of_rows(world, options), report.results);
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
  app->add_option("--batch", options->batches, "texts of a step, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app->add_option("--rows", options->most_rows, "most tokens of a text that a step verifies")
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
  add_device_option(*app, options->session.device);
  add_load_format_option(*app, options->session.load_format);
  add_deterministic_option(*app, options->session.engine.deterministic);
  app->callback([=] {
    Report report = bench_speculation(*options);
    report.command = command;
    print_table(report, std::cout);
    if (!options->json.empty()) write_json(report, options->json);
  });
}

}  // namespace quire::bench
