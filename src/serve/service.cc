#include "serve/service.h"

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/live_job.h"

namespace quire::serve {
namespace {

std::optional<text::ChatTemplate> template_of(const ServiceOptions& options, const text::Tokenizer& tokenizer) {
  if (!options.chat_template.empty()) return text::ChatTemplate(options.chat_template);
  const std::optional<std::string>& own = tokenizer.vocabulary().chat_template;
  if (!own) return std::nullopt;
  return text::ChatTemplate(*own);
}

}  // namespace

struct Service::Impl {
  Impl(const Parts& given, const ServiceOptions& asked)
      : parts(given),
        options(asked),
        chat_template(template_of(asked, given.tokenizer)),
        logprobs(asked.most_logprobs),
        gpu_name(given.model.device() == Device::cuda ? cuda::device_name() : ""),
        resources(new JobResources{given.engine, given.tokenizer, Metrics(asked.served_model_name)}) {}

  std::string piece_of(const std::optional<int32_t>& id) const {
    return id ? std::string(parts.tokenizer.piece(*id)) : "";
  }

  const Parts parts;
  const ServiceOptions options;
  const std::optional<text::ChatTemplate> chat_template;
  LogprobBudget logprobs;
  const std::string gpu_name;
  const std::shared_ptr<JobResources> resources;
  std::atomic<bool> draining = false;
};

Service::Service(const Parts& parts, const ServiceOptions& options) : impl_(std::make_unique<Impl>(parts, options)) {}

Service::~Service() {
  drain();
  impl_->resources->deadlines.stop();
  abort("");
  impl_->resources->registry.clear();  // it is theirs, too: they would keep each other alive
}

const ServiceOptions& Service::options() const { return impl_->options; }
const text::Tokenizer& Service::tokenizer() const { return impl_->parts.tokenizer; }
const model::ModelConfig& Service::config() const { return impl_->parts.model.config(); }
const engine::EngineOptions& Service::engine_options() const { return impl_->parts.engine.options(); }
Device Service::device() const { return impl_->parts.model.device(); }
const std::string& Service::gpu_name() const { return impl_->gpu_name; }

std::optional<cuda::Memory> Service::gpu_memory() const {
  if (device() == Device::cpu) return {};
  try {
    return cuda::memory();
  } catch (const cuda::DeviceError&) {  // of which the engine tells
    return {};
  }
}

const grammar::Compiler& Service::grammars() const { return impl_->parts.grammars; }
LogprobBudget& Service::logprob_budget() const { return impl_->logprobs; }

// --- what calls are made of

bool Service::has_chat_template() const { return impl_->chat_template.has_value(); }

std::string Service::render(nlohmann::ordered_json context) const {
  if (!has_chat_template())
    throw ApiError(400, "the model has no chat template; /v1/completions and /generate continue a text");
  const text::Vocabulary& vocabulary = tokenizer().vocabulary();
  context["bos_token"] = impl_->piece_of(vocabulary.bos);
  context["eos_token"] = impl_->piece_of(vocabulary.eos);
  try {
    return impl_->chat_template->render(context);
  } catch (const Refused& refused) {  // what the template says about the messages
    throw ApiError(400, refused.what(), "messages");
  }
}

// Ids name requests that can be aborted, so they are not to be guessed.
std::string Service::new_id(std::string_view prefix) const {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz012345";
  constexpr int kWords = 5, kLettersOfAWord = 6;  // 30 bits
  std::random_device random;
  std::string id(prefix);
  for (int word = 0; word < kWords; ++word) {
    uint32_t bits = random();
    for (int i = 0; i < kLettersOfAWord; ++i, bits >>= 5) id += kLetters[bits % kLetters.size()];
  }
  return id;
}

// --- jobs

std::shared_ptr<JobHandle> Service::run(JobSpec job, std::shared_ptr<http::Exchange> exchange, OnProgress on_progress) {
  if (draining() && !job.follows) throw ApiError(503, "the server is shutting down");
  const int32_t most = options().most_jobs_of_a_key;
  if (most > 0 && job.key >= 0 && !job.follows && impl_->resources->registry.of_key(job.key) >= most)
    throw ApiError(503, cat("the server is busy: ", most, " requests of this key wait or run already"));
  const LiveJob::TimeLimits limits{.waiting = job.follows ? std::chrono::milliseconds(0) : options().queue_time,
                                   .running = options().run_time};
  try {
    const auto run = std::make_shared<LiveJob>(impl_->resources, LiveJob::Name{std::move(job.rid), job.key},
                                               std::move(job.text), std::move(exchange), std::move(on_progress));
    run->start(std::move(job.request), limits);
    return run;
  } catch (const engine::QueueFull& full) {
    throw ApiError(503, cat("the server is busy: ", full.what()));
  } catch (const engine::RequestRefused& refused) {
    throw ApiError(400, refused.what());
  } catch (const engine::EngineStopped&) {  // why is in the log
    throw ApiError(503, "the engine has stopped");
  }
}

int Service::abort(std::string_view rid_prefix, std::optional<int32_t> key) {
  const auto jobs = impl_->resources->registry.named(rid_prefix, key);
  for (const auto& job : jobs) job->cancel();
  return static_cast<int>(jobs.size());
}

void Service::flush_cache() { impl_->parts.engine.flush_cache(); }
engine::EngineStats Service::stats() const { return impl_->parts.engine.stats(); }
Metrics& Service::metrics() { return impl_->resources->metrics; }
int32_t Service::jobs() const { return impl_->resources->registry.size(); }

void Service::later(std::chrono::milliseconds delay, std::function<void()> action) {
  impl_->resources->deadlines.add(std::chrono::steady_clock::now() + delay, std::move(action));
}

bool Service::works() const { return impl_->parts.engine.accepts(); }
void Service::drain() { impl_->draining = true; }
bool Service::draining() const { return impl_->draining; }

}  // namespace quire::serve
