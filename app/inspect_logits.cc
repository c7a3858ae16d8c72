#include "inspect_logits.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/check.h"
#include "base/exec.h"
#include "base/graph.h"
#include "commands.h"
#include "kv/page_pool.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/forward.h"
#include "model/model.h"
#include "model_path.h"
#include "one_line_errors.h"
#include "ops/logits.h"
#include "progress.h"
#include "session.h"

namespace quire {
namespace {

using nlohmann::ordered_json;

constexpr PageSize kPageSize(16);
constexpr int kShownToPeople = 5;  // largest logits of a position

// One text on its way through a model. Every step gives the logits of all its rows.
class OneSequence {
 public:
  OneSequence(const model::Model& model, int32_t tokens, int32_t chunk, Dtype kv_type, Exec& exec)
      : exec_(exec),
        pool_(1 + kPageSize.pages_for(tokens), kPageSize),
        table_(pool_, 2, tokens),
        row_(table_.open()),
        store_(model::kv_layout(model.config(), pool_.pages(), kPageSize, kv_type)),
        arena_(model::attention_limits(model.config(), {.batch = 1,
                                                        .context = tokens,
                                                        .page_size = kPageSize,
                                                        .threads = exec.threads(),
                                                        .query_rows = chunk,
                                                        .wanted_rows = chunk})),
        inputs_(arena_.limits()),
        forward_(model, arena_.limits(), kv_type) {
    check(table_.reserve(row_, {tokens}), "no pages for ", tokens, " tokens");
    std::ranges::fill(forward_.logit_reach(), ops::kWholeReach);  // all of them are shown, and any may be scored
  }

  Rows<const float> extend(std::span<const int32_t> ids) {
    fill(ids);
    forward_.run(shape(attn::Mode::extend, static_cast<int32_t>(ids.size())), inputs_.inputs(), arena_, store_, exec_);
    return forward_.logits();
  }

  Rows<const float> decode(int32_t id) {
    if (graph_.size() == 0) {
      exec_.begin_capture(graph_);
      forward_.run(shape(attn::Mode::decode, 1), inputs_.inputs(), arena_, store_, exec_);
      exec_.end_capture();
    }
    fill({&id, 1});
    graph_.replay(exec_);
    return forward_.logits();
  }

 private:
  attn::StepShape shape(attn::Mode mode, int32_t rows) const {
    return {.mode = mode, .captured = 1, .query_rows = rows, .table = table_.view()};
  }

  void fill(std::span<const int32_t> ids) {
    const auto count = static_cast<int32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), inputs_.input_ids());
    std::iota(inputs_.positions(), inputs_.positions() + count, length_);
    std::iota(inputs_.wanted_rows(), inputs_.wanted_rows() + count, 0);
    for (int32_t i = 0; i < count; ++i) inputs_.slot_mapping()[i] = table_.slot(row_, length_ + i);
    inputs_.query_rows() = inputs_.wanted_count() = inputs_.logits_count() = count;
    length_ += count;
    inputs_.live() = 1;
    inputs_.rows()[0] = row_;
    inputs_.lengths()[0] = {length_};
    inputs_.extend_lengths()[0] = {count};
  }

  Exec& exec_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  RequestRow row_;
  kv::KvStore store_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers inputs_;
  model::Forward forward_;
  Graph graph_;
  int32_t length_ = 0;
};

double log_probability(std::span<const float> logits, int32_t id) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return logits[id] - top - std::log(sum);
}

// What is printed: the likeliest token after every position, the log-probability of the token that does follow, and all
// logits of the positions asked for.
class Report {
 public:
  Report(std::span<const int32_t> ids, std::vector<int32_t> wanted, int32_t vocabulary)
      : ids_(ids), wanted_(std::move(wanted)), vocabulary_(vocabulary) {}

  void add(const Rows<const float>& logits, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row) {
      const std::span<const float> all(logits.row(row), static_cast<size_t>(vocabulary_));
      const auto position = static_cast<int32_t>(argmax_.size());
      argmax_.push_back(static_cast<int32_t>(std::max_element(all.begin(), all.end()) - all.begin()));
      if (position + 1 < std::ssize(ids_)) logprobs_.push_back(log_probability(all, ids_[position + 1]));
      if (std::find(wanted_.begin(), wanted_.end(), position) != wanted_.end())
        logits_[position].assign(all.begin(), all.end());
    }
  }

  void print_json(const std::string& about) const {
    ordered_json logits = ordered_json::object();
    for (const auto& [position, values] : logits_) logits[std::to_string(position)] = values;
    std::cout << ordered_json{{"model", about},
                              {"argmax", argmax_},
                              {"logprobs", logprobs_},
                              {"logits", std::move(logits)}}
                     .dump()
              << '\n';
  }

  void print(const std::string& about) const {
    std::printf("%s\n\nposition  likeliest next tokens, with their logits\n", about.c_str());
    for (const auto& [position, values] : logits_) {
      std::vector<int32_t> order(values.size());
      std::iota(order.begin(), order.end(), 0);
      const auto shown = std::min<size_t>(kShownToPeople, order.size());
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                        [&](int32_t a, int32_t b) { return values[a] > values[b]; });
      std::printf("%8d", position);
      for (size_t i = 0; i < shown; ++i) std::printf("  %6d %8.4f", order[i], values[order[i]]);
      std::printf("\n");
    }
  }

 private:
  std::span<const int32_t> ids_;
  std::vector<int32_t> wanted_;
  int32_t vocabulary_;
  std::vector<int32_t> argmax_;                   // [tokens]
  std::vector<double> logprobs_;                  // [tokens - 1]
  std::map<int32_t, std::vector<float>> logits_;  // by position
};

void check_options(const LogitsOptions& options, const model::ModelConfig& config) {
  const auto tokens = std::ssize(options.ids);
  check(tokens > 0 && tokens <= config.context, tokens, " ids; the model takes 1 to ", config.context);
  for (const int32_t id : options.ids)
    check(id >= 0 && id < config.vocabulary, "id ", id, " is not between 0 and ", config.vocabulary - 1);
  for (const int32_t position : options.positions)
    check(position >= 0 && position < tokens, "position ", position, " is not between 0 and ", tokens - 1);
  check(options.chunk >= 1, "chunks of ", options.chunk, " tokens");
  check(options.decode_from >= -1 && options.decode_from <= tokens, "decoding from ", options.decode_from, " of ",
        tokens, " tokens");
}

Report run_text(const model::Model& model, const LogitsOptions& options, Exec& exec) {
  const std::span ids(options.ids);
  const auto tokens = static_cast<int32_t>(ids.size());
  const int32_t chunk = std::min(options.chunk, tokens);
  const int32_t extended = options.decode_from < 0 ? tokens : options.decode_from;
  Report report(ids, options.positions.empty() ? std::vector{tokens - 1} : options.positions,
                model.config().vocabulary);
  OneSequence sequence(model, tokens, chunk, options.kv_type, exec);
  Progress progress;
  for (int32_t begin = 0; begin < extended; begin += chunk) {
    progress.say(cat("reading the text: ", begin, " of ", tokens, " tokens"));
    const int32_t size = std::min(chunk, extended - begin);
    report.add(sequence.extend(ids.subspan(begin, size)), size);
  }
  for (int32_t position = extended; position < tokens; ++position) {
    progress.say(cat("reading the text: ", position, " of ", tokens, " tokens"));
    report.add(sequence.decode(ids[position]), 1);
  }
  return report;
}

}  // namespace

int inspect_logits(const LogitsOptions& options) {
  return with_one_line_errors("inspect logits", [&] {
    Exec exec({.threads = options.threads, .isa = options.isa});
    const model::Model model = load_model(model_path(options.model), exec);
    check_options(options, model.config());
    const Report report = run_text(model, options, exec);
    if (options.json)
      report.print_json(to_string(model.config()));
    else
      report.print(to_string(model.config()));
  });
}

void add_inspect_logits(CLI::App& inspect) {
  struct Given {
    LogitsOptions options;
    std::string isa;
    std::string kv_type = "f32";
  };
  const auto given = std::make_shared<Given>();
  LogitsOptions& options = given->options;
  CLI::App* logits = inspect.add_subcommand("logits", "the logits of a model for a text given as token ids");
  add_model_argument(*logits, options.model);
  logits->add_option("--ids", options.ids, "token ids, separated by commas")->required()->delimiter(',');
  logits->add_option("--positions", options.positions, "whose logits to print; the last one's if none")->delimiter(',');
  logits->add_option("--chunk", options.chunk, "tokens in a step")->capture_default_str();
  logits->add_option("--decode-from", options.decode_from, "from this position on, one token a step, by replay");
  add_threads_option(*logits, options.threads);
  add_isa_option(*logits, given->isa);
  add_kv_type_option(*logits, given->kv_type);
  logits->add_flag("--json", options.json, "print JSON: argmax of every position, all logits of those asked for");
  logits->callback([given] {
    const int bad = with_one_line_errors("inspect logits", [&] {
      given->options.isa = usable_isa(given->isa);
      given->options.kv_type = kv_type_from(given->kv_type);
    });
    const int code = bad ? bad : inspect_logits(given->options);
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace quire
