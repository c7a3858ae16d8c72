#include "throughput_lines.h"

#include <algorithm>
#include <memory>

#include "model_client.h"

namespace quire::bench {
namespace {

constexpr int32_t kSharedPrompt = 1520;  // of which the other request has the first kShared tokens
constexpr int32_t kShared = 1500;
constexpr int32_t kLongPrompt = 1500;    // that is prefilled while another request decodes
constexpr int32_t kRunningPrompt = 128;  // of a client that decodes meanwhile
constexpr int32_t kBystander = 1024;     // tokens of that other request at most: more than it needs

int32_t largest(const std::vector<int32_t>& values, int32_t least) {
  for (const int32_t value : values) least = std::max(least, value);
  return least;
}

using Clients = std::vector<std::unique_ptr<ModelClient>>;

double seconds_of_all(const Clients& clients) {
  Clock::time_point end = Clock::time_point::min();
  for (const auto& client : clients) end = std::max(end, client->times().back());
  return seconds_between(clients.front()->asked(), end);
}

// Decoding counts while all sequences are in it: after the last has its first token, until the first is finished.
double decode_seconds_a_token(const Clients& clients) {
  Clock::time_point all_decode = Clock::time_point::min(), one_done = Clock::time_point::max();
  for (const auto& client : clients) {
    all_decode = std::max(all_decode, client->times().front());
    one_done = std::min(one_done, client->times().back());
  }
  int64_t tokens = 0;
  for (const auto& client : clients)
    tokens += std::count_if(client->times().begin(), client->times().end(),
                            [&](Clock::time_point time) { return time > all_decode && time <= one_done; });
  check(tokens > 0, "the first of ", clients.size(),
        " sequences was finished before the last had a token: ", "more output tokens are needed");
  return seconds_between(all_decode, one_done) / static_cast<double>(tokens);
}

class Experiments {
 public:
  explicit Experiments(Session& session)
      : engine_(session.engine),
        model_(session.model),
        has_gpu_(session.stream != nullptr),
        prompts_(session.engine.options().vocabulary) {}

  Experiment prefill(int32_t tokens);
  Experiment decode(int32_t depth, int32_t new_tokens);
  Experiment batch(int32_t sequences, int32_t prompt, int32_t new_tokens);
  Experiment with_idle_line(Experiment experiment, const std::string& name) const;
  Experiment first_token_while_decoding();
  Experiment first_token_after_finish();
  Experiment gap();

 private:
  double kv_bytes_of_token() const;
  double bytes_of_step(int32_t sequences, double keys) const;
  Clients run_together(const std::vector<std::vector<int32_t>>& prompts, int32_t new_tokens);
  double first_seconds_of_sharer(const std::vector<int32_t>& prefix);

  engine::Engine& engine_;
  const model::Model& model_;
  const bool has_gpu_;
  PromptMaker prompts_;
};

double Experiments::kv_bytes_of_token() const {
  return static_cast<double>(model_.config().kv_elements() * size_of(engine_.options().kv_type));
}

// What a decode step reads at least: the weights once, and every key and value of each sequence.
double Experiments::bytes_of_step(int32_t sequences, double keys) const {
  return static_cast<double>(model_.weight_bytes()) + sequences * keys * kv_bytes_of_token();
}

Experiment Experiments::prefill(int32_t tokens) {
  const auto run = [=, this] {
    engine_.flush_cache();
    const ModelClient client(engine_, prompts_.make(tokens), 1);
    client.step_until_finished();
    return std::vector{client.first_seconds()};
  };
  return {{{cat("throughput/prefill/tokens=", tokens), static_cast<double>(tokens), 0}}, tokens + 1, run};
}

// The first new token belongs to the prompt; the measured ones follow it.
Experiment Experiments::decode(int32_t depth, int32_t new_tokens) {
  const int32_t prompt = std::max(depth, 1);
  const auto run = [=, this] {
    engine_.flush_cache();
    const ModelClient client(engine_, prompts_.make(prompt), new_tokens + 1);
    client.step_until_finished();
    return std::vector{seconds_between(client.times().front(), client.times().back()) / new_tokens};
  };
  const double bytes = bytes_of_step(1, depth + new_tokens / 2.0);
  const std::string name = cat("throughput/decode/depth=", depth);
  return with_idle_line({{{name, 1, bytes}}, prompt + new_tokens + 1, run}, name);
}

// On a GPU: the time between two steps that each bring a token, in which it does nothing.
Experiment Experiments::with_idle_line(Experiment experiment, const std::string& name) const {
  if (!has_gpu_) return experiment;
  experiment.lines.push_back({name + "/idle", 0, 0});
  experiment.run = [this, run = std::move(experiment.run)] {
    const engine::EngineStats before = engine_.stats();
    std::vector<double> seconds = run();
    const engine::EngineStats after = engine_.stats();
    const auto steps = static_cast<double>(after.overlapped_steps - before.overlapped_steps);
    seconds.push_back((after.idle_us - before.idle_us) * 1e-6 / std::max(steps, 1.0));
    return seconds;
  };
  return experiment;
}

Clients Experiments::run_together(const std::vector<std::vector<int32_t>>& prompts, int32_t new_tokens) {
  Clients clients;
  for (const std::vector<int32_t>& prompt : prompts)
    clients.push_back(std::make_unique<ModelClient>(engine_, prompt, new_tokens));
  for (const auto& client : clients) client->step_until_finished();
  return clients;
}

// Twice with the same prompts: cold for the whole, then with the prompts in the prefix cache, where all begin to decode
// at once. (Beside prompts to compute, the first to begin may be finished before the last begins.)
Experiment Experiments::batch(int32_t sequences, int32_t prompt, int32_t new_tokens) {
  const auto run = [=, this] {
    engine_.flush_cache();
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < sequences; ++i) prompts.push_back(prompts_.make(prompt));
    const engine::EngineStats before = engine_.stats();
    const double seconds = seconds_of_all(run_together(prompts, new_tokens));
    const engine::EngineStats after = engine_.stats();
    const double decode_seconds = decode_seconds_a_token(run_together(prompts, new_tokens));
    const double scheduling =
        after.schedule_us * static_cast<double>(after.steps) - before.schedule_us * static_cast<double>(before.steps);
    return std::vector{decode_seconds, seconds, scheduling * 1e-6 / static_cast<double>(after.steps - before.steps)};
  };
  const std::string name = cat("throughput/batch=", sequences, "/prompt=", prompt, "/output=", new_tokens);
  const double bytes = bytes_of_step(sequences, prompt + new_tokens / 2.0) / sequences;
  return with_idle_line({{{name + "/decode", 1, bytes},
                          {name + "/overall", static_cast<double>(sequences) * (prompt + new_tokens), 0},
                          {name + "/schedule", 0, 0}},
                         prompt + new_tokens,
                         run},
                        name);
}

double Experiments::first_seconds_of_sharer(const std::vector<int32_t>& prefix) {
  const ModelClient sharer(engine_, prompts_.continue_from(prefix, kSharedPrompt - kShared), 1);
  sharer.step_until_finished();
  return sharer.first_seconds();
}

std::string sharer_name(const char* other) {
  return cat("throughput/first_token/shared=", kShared, "/of=", kSharedPrompt, "/other=", other);
}

Experiment Experiments::first_token_while_decoding() {
  const auto run = [this] {
    engine_.flush_cache();
    const std::vector<int32_t> prefix = prompts_.make(kShared);
    const ModelClient other(engine_, prompts_.continue_from(prefix, kSharedPrompt - kShared), kBystander);
    other.step_until_tokens(16);
    const double seconds = first_seconds_of_sharer(prefix);
    check(!other.finished(), "the request that shares its prefix was finished too early");
    return std::vector{seconds};
  };
  return {{{sharer_name("decoding"), 0, 0}}, kSharedPrompt + kBystander, run};
}

Experiment Experiments::first_token_after_finish() {
  const auto run = [this] {
    engine_.flush_cache();
    const std::vector<int32_t> prefix = prompts_.make(kShared);
    const ModelClient other(engine_, prompts_.continue_from(prefix, kSharedPrompt - kShared), 16);
    other.step_until_finished();
    return std::vector{first_seconds_of_sharer(prefix)};
  };
  return {{{sharer_name("finished"), 0, 0}}, kSharedPrompt + 16, run};
}

// The largest time between two tokens of a running client while another's prompt is prefilled.
Experiment Experiments::gap() {
  const auto run = [this] {
    engine_.flush_cache();
    const ModelClient running(engine_, prompts_.make(kRunningPrompt), kBystander);
    running.step_until_tokens(16);
    const ModelClient prompt(engine_, prompts_.make(kLongPrompt), 1);
    prompt.step_until_finished();
    running.step_until_tokens(running.times().size() + 1);
    double longest = 0;
    for (size_t i = 16; i < running.times().size(); ++i)
      longest = std::max(longest, seconds_between(running.times()[i - 1], running.times()[i]));
    return std::vector{longest};
  };
  return {{{cat("throughput/gap/prompt=", kLongPrompt), 0, 0}}, kRunningPrompt + kBystander, run};
}

}  // namespace

int32_t ThroughputShape::most_tokens() const {
  const int32_t decode = largest(depths, batch_prompt) + new_tokens + 1;
  return std::max({largest(prompts, 0) + 1, decode, kSharedPrompt + kBystander});
}

int32_t ThroughputShape::most_total_tokens() const {
  constexpr int32_t kPartPages = 64;  // for each sequence, whatever the page size up to this
  return std::max(2 * most_tokens(), most_sequences() * (batch_prompt + new_tokens + kPartPages));
}

int32_t ThroughputShape::most_sequences() const { return largest(concurrency, 2); }

std::vector<Experiment> throughput_experiments(const ThroughputShape& shape, Session& session) {
  const auto made = std::make_shared<Experiments>(session);
  std::vector<Experiment> all;
  for (const int32_t tokens : shape.prompts) all.push_back(made->prefill(tokens));
  for (const int32_t depth : shape.depths) all.push_back(made->decode(depth, shape.new_tokens));
  for (const int32_t sequences : shape.concurrency)
    all.push_back(made->batch(sequences, shape.batch_prompt, shape.new_tokens));
  all.push_back(made->first_token_while_decoding());
  all.push_back(made->first_token_after_finish());
  all.push_back(made->gap());
  for (Experiment& experiment : all)
    experiment.run = [made, run = std::move(experiment.run)] { return run(); };  // keeps them alive
  return all;
}

}  // namespace quire::bench
