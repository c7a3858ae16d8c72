#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attn/metadata.h"
#include "base/check.h"
#include "base/cuda_memory.h"
#include "engine/ahead_masks.h"
#include "engine/available_memory.h"
#include "engine/pool_memory.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/step.h"
#include "engine/step_device.h"
#include "model/draft_branches.h"
#include "ops/sample.h"

namespace quire::engine {
namespace {

// How long it waits for a mask, where there is nothing else to do, before it looks for mail again.
constexpr std::chrono::milliseconds kIdleMaskWait{5};

// Of a draft, until it was measured: a GPU multiplies a few rows nearly as soon as one.
constexpr double kGpuRowPrice = 0.02;

int32_t draft_steps_of(const EngineOptions& options) {
  if (options.speculative_num_steps > 0) return options.speculative_num_steps;
  const int32_t all = options.speculative_num_draft_tokens - 1;
  return options.speculative_eagle_topk == 1 ? all : std::min(all, kTreeSteps);
}

int32_t context_of(const EngineOptions& options, const model::ModelConfig& config) {
  return options.context > 0 ? options.context : config.context;
}

// A GPU's step of 256 sequences takes hardly longer than one of 64.
int32_t running_of(const EngineOptions& options, Device device) {
  if (options.max_running_requests > 0) return options.max_running_requests;
  return device == Device::cpu ? 64 : 256;
}

void fill_in_drafts(EngineOptions& options, Device device) {
  check_draft_options(options);
  const int32_t topk = options.speculative_eagle_topk;
  check(device == Device::cpu || topk <= model::kMostGpuTopk, "--speculative-eagle-topk is ", topk,
        ", on a GPU it is from 1 to ", model::kMostGpuTopk);
  check(device == Device::cpu || topk == 1 || options.head, "--speculative-eagle-topk is ", topk,
        ", on a GPU branches are a head's (--speculative-draft-model-path)");
  const int32_t vocabulary = options.head ? options.head->spec().draft_vocabulary : topk;
  check(topk <= vocabulary, "--speculative-eagle-topk is ", topk, ", and the head has ", vocabulary, " tokens");
  options.speculative_num_steps = draft_steps_of(options);
}

EngineOptions filled_in(EngineOptions options, const model::ModelConfig& config, Device device) {
  options.context = context_of(options, config);
  check(options.context >= 2 && options.context <= config.context, "a context of ", options.context,
        " tokens, for a model of ", config.context);
  if (options.vocabulary == 0) options.vocabulary = config.vocabulary;
  check(options.vocabulary > 0 && options.vocabulary <= config.vocabulary, "a vocabulary of ", options.vocabulary,
        " tokens, for a model of ", config.vocabulary);
  check(options.max_total_tokens >= 0, "a pool of ", options.max_total_tokens, " tokens");
  check(options.max_running_requests >= 0, options.max_running_requests, " running requests");
  options.max_running_requests = running_of(options, device);
  check(options.kv_type != Dtype::f32 || device == Device::cpu,
        "keys and values of f32 are a CPU's alone: on a GPU they are bf16, f16 or fp8");
  if (options.steps_in_flight == -1) options.steps_in_flight = device == Device::cpu ? 0 : 1;
  check(options.steps_in_flight >= 0 && options.steps_in_flight <= 2, options.steps_in_flight, " steps in flight");
  check(options.max_queued_requests >= 0, options.max_queued_requests, " queued requests");
  const bool is_cpu = device == Device::cpu;
  fill_in_drafts(options, device);
  if (options.prefill_chunk == 0) options.prefill_chunk = is_cpu ? 512 : 8192;
  if (options.mixed_chunk == 0) options.mixed_chunk = is_cpu ? 64 : 512;
  options.mixed_chunk = std::min(options.mixed_chunk, options.prefill_chunk);
  check(options.mem_fraction_static > 0 && options.mem_fraction_static < 1, "--mem-fraction-static is ",
        options.mem_fraction_static, ", not between 0 and 1");
  return options;
}

SchedulerLimits limits_of(const EngineOptions& options, Device device) {
  const PageSize page_size(options.page_size);
  return {.context = options.context,
          .pages = page_size.pages_for(options.max_total_tokens),
          .page_size = page_size,
          .running = options.max_running_requests,
          .prefill_chunk = options.prefill_chunk,
          .mixed_chunk = options.mixed_chunk,
          .prefix_cache = options.prefix_cache,
          .device_counts = device == Device::cuda,
          .draws_at_once = device == Device::cuda,
          .first_row_price = device == Device::cuda ? kGpuRowPrice : DraftBudget::kFirstPrice,
          .drafts = options.make_drafter || options.head ? options.speculative_num_draft_tokens - 1 : 0,
          .topk = options.speculative_eagle_topk,
          .draft_steps = options.speculative_num_steps,
          .draft_model = options.head != nullptr,
          .drafts_at_once = device == Device::cuda,
          .row_tile = device == Device::cuda ? kGpuRowTile : 1,
          .first_wait = device == Device::cuda ? options.prefill_chunk : 0};  // a CPU's rows cost as much in any step
}

void check_request(const Request& request, const SchedulerLimits& limits, int32_t vocabulary) {
  check_fits(request.prompt, limits);
  for (const int32_t token : request.prompt)
    check(token >= 0 && token < vocabulary, "token ", token, " of the prompt is outside the vocabulary of ",
          vocabulary);
  check(request.max_new_tokens >= -1, "max_new_tokens is ", request.max_new_tokens);
  check(request.priority >= -kMostPriority && request.priority <= kMostPriority, "priority is ", request.priority,
        ", not from ", -kMostPriority, " to ", kMostPriority);
  check(request.min_new_tokens >= 0, "min_new_tokens is ", request.min_new_tokens);
  check(request.top_logprobs >= -1 && request.top_logprobs <= vocabulary, "top_logprobs is ", request.top_logprobs);
  for (const int32_t id : request.logprob_ids)
    check(id >= 0 && id < vocabulary, "logprobs of token ", id, ", outside the vocabulary of ", vocabulary);
  check(request.prompt_logprobs_from >= -1, "prompt_logprobs_from is ", request.prompt_logprobs_from);
  check(request.pooling == Pooling::none || (request.max_new_tokens == 0 && request.prompt_logprobs_from < 0),
        "a pooled request generates no tokens and has no prompt logprobs");
  ops::check_sampling(request.sampling, vocabulary);
}

// Which takes memory for the pool, for a step's rows and for graphs.
std::unique_ptr<StepDevice> made_by(const StepDeviceMaker& make_device, const StepDeviceParts& parts) {
  try {
    return make_device ? make_device(parts) : make_step_device(parts);
  } catch (const cuda::OutOfMemory& error) {
    throw cuda::OutOfMemory(cat(error.what(),
                                ": lower --mem-fraction-static, --max-total-tokens, --max-running-requests or "
                                "--chunked-prefill-size"));
  }
}

StepDeviceParts parts_of(const EngineOptions& options, const SchedulerLimits& limits, const model::Model& model,
                         Scheduler& scheduler, MaskThreads& masks, Exec& exec) {
  return {.model = model,
          .limits = limits,
          .kv_type = options.kv_type,
          .vocabulary = options.vocabulary,
          .deterministic = options.deterministic,
          .head = options.head,
          .table = scheduler.table(),
          .masks = masks,
          .exec = exec};
}

// --- the pool

// What a GPU has for the pool beside all that a device takes for itself: rows, graphs, sampler, a head's buffers. That
// is known when it has been there: one is made with next to no pool, and goes again. What it leaves behind, code that
// the GPU has loaded, counts as taken.
int64_t free_beside_device(EngineOptions options, int64_t token_bytes, const model::Model& model, Exec& exec,
                           const StepDeviceMaker& make_device) {
  options.max_total_tokens = options.page_size;
  const SchedulerLimits limits = limits_of(options, exec.device());
  Scheduler scheduler(limits);
  MaskThreads masks;
  const std::unique_ptr<StepDevice> device =
      made_by(make_device, parts_of(options, limits, model, scheduler, masks, exec));
  return cuda::memory().free + token_bytes * 2 * options.page_size;  // one page is nobody's
}

// On a GPU the pool takes all that it may: nobody else needs it. On a host it becomes resident as it is used.
EngineOptions with_pool(EngineOptions options, const model::Model& model, Exec& exec,
                        const StepDeviceMaker& make_device) {
  const model::EagleSpec* const head = options.head ? &options.head->spec() : nullptr;
  MemoryDemand demand = memory_demand(options, model.config(), head, exec.device());
  const bool is_given = options.max_total_tokens > 0;
  if (exec.device() == Device::cuda) {
    int64_t free = cuda::memory().free;
    if (!is_given) {
      free = free_beside_device(options, demand.token_bytes, model, exec, make_device);
      demand.branches = 0;  // the device has them
    }
    options.max_total_tokens = pool_tokens_on_gpu(demand, {free, cuda::free_at_start(), options.mem_fraction_static});
    return options;
  }
  std::optional<int64_t> memory = available_memory();
  if (memory) memory = std::max<int64_t>(0, *memory - demand.branches);
  if (is_given)
    check_pool_fits(demand.token_bytes, options.max_total_tokens, memory);
  else
    options.max_total_tokens = default_pool_tokens(demand.token_bytes, options.context, options.page_size, memory);
  return options;
}

// What the other threads have left for the loop since the last step.
struct Mail {
  struct Arrival {
    RequestId id;
    Request request;
    Listener listener;
    Clock::time_point submitted;
  };
  std::vector<Arrival> arrivals;
  std::vector<RequestId> cancellations, give_ups;
  bool flush = false;

  bool empty() const { return arrivals.empty() && cancellations.empty() && give_ups.empty() && !flush; }
  void count_in(EngineStats& stats) const {  // arrivals wait, too
    stats.queued += static_cast<int32_t>(arrivals.size());
    for (const Arrival& arrival : arrivals) stats.queued_tokens += std::ssize(arrival.request.prompt);
  }
  void clear() {
    arrivals.clear();
    cancellations.clear();
    give_ups.clear();
    flush = false;
  }
};

}  // namespace

MemoryDemand memory_demand(const EngineOptions& options, const model::ModelConfig& config, const model::EagleSpec* head,
                           Device device) {
  const DraftBranches branches{
      .running = running_of(options, device), .topk = options.speculative_eagle_topk, .steps = draft_steps_of(options)};
  return {.branches = head ? draft_branch_bytes(*head, options.kv_type, branches) : 0,
          .token_bytes = pool_token_bytes(config, options.kv_type, options.page_size, head),
          .page_size = options.page_size,
          .context = context_of(options, config),
          .tokens = options.max_total_tokens};
}

void check_draft_options(const EngineOptions& options) {
  const int32_t verified = options.speculative_num_draft_tokens, topk = options.speculative_eagle_topk;
  const int32_t given_steps = options.speculative_num_steps;
  check(verified >= 2, "--speculative-num-draft-tokens is ", verified, ", and the newest token is one of them");
  check(verified <= attn::kMostDrafts, "--speculative-num-draft-tokens is ", verified, ", not from 2 to ",
        attn::kMostDrafts);
  check(topk >= 1 && topk <= attn::kMostDrafts, "--speculative-eagle-topk is ", topk, ", not from 1 to ",
        attn::kMostDrafts);
  check(given_steps >= 0 && given_steps <= attn::kMostDrafts, "--speculative-num-steps is ", given_steps,
        ", not from 1 to ", attn::kMostDrafts);
  const int32_t steps = draft_steps_of(options);
  check(topk > 1 || steps < verified, "--speculative-num-steps is ", steps,
        ", a chain of so many drafts and the newest ", "token are ", steps + 1,
        " tokens, and --speculative-num-draft-tokens lets a step verify ", verified);
  const int64_t nodes = topk + int64_t{topk} * topk * (steps - 1);
  check(topk == 1 || verified - 1 <= nodes, "--speculative-num-draft-tokens is ", verified, ", and a tree of ", topk,
        " branches (--speculative-eagle-topk) and ", steps, " steps (--speculative-num-steps) has ", nodes, " drafts");
}

struct Engine::Impl {
  Impl(const model::Model& model, const EngineOptions& given, Exec& on, const StepDeviceMaker& make_device)
      : options(with_pool(filled_in(given, model.config(), on.device()), model, on, make_device)),
        limits(limits_of(options, on.device())),
        scheduler(limits, options.make_drafter),
        device(made_by(make_device, parts_of(options, limits, model, scheduler, masks, on))),
        pool_bytes(options.max_total_tokens * pool_token_bytes(model.config(), options.kv_type, options.page_size,
                                                               options.head ? &options.head->spec() : nullptr)) {
    if (DraftModel* const drafts = device->draft_model()) scheduler.set_draft_model(*drafts);
    publish();
  }

  RequestId submit(Request request, Listener listener);
  bool step();
  bool take_step();
  void take_mail();
  void launch(Batch batch);
  void prepare_draws(Step& step);
  template <class Work>
  void compute(Step& step, const Work& work);
  std::string in_flight_text() const;
  void fail_in_flight(const std::string& reason);
  void settle_oldest();
  void count_idle(const Step& step);
  void publish();
  void loop();
  void break_down(const std::string& reason);
  void end_all(Finish finish, const std::string& error);

  const EngineOptions options;
  const SchedulerLimits limits;

  // Of the thread that steps.
  Scheduler scheduler;
  MaskThreads masks;
  Mail taken;
  std::deque<Step> in_flight;          // launched and not settled, oldest first
  std::unique_ptr<StepDevice> device;  // may write to them as long as it lives
  const int64_t pool_bytes;
  Step spare;  // a settled one, for its memory
  int64_t steps = 0, overlapped_steps = 0;
  std::chrono::duration<double, std::micro> device_idle{};  // before those, in all
  Clock::duration scheduling{}, elsewhere{};                // in all steps; what this one computed, or waited for masks

  // Of all threads, behind the mutex.
  mutable std::mutex mutex;
  std::condition_variable wake;
  Mail mail;
  EngineStats stats{};
  RequestId last_id = 0;
  bool stopping = false;
  std::string broken;  // why the loop ended by itself; empty: it did not

  std::mutex lifecycle;  // of start() and stop()
  std::thread thread;
};

RequestId Engine::Impl::submit(Request request, Listener listener) {
  check(listener != nullptr, "a request without a listener");
  try {
    check_request(request, limits, options.vocabulary);
  } catch (const CheckError& refused) {
    throw RequestRefused(refused.what());
  }
  // Once, not in each step: a client may name all tokens.
  std::stable_sort(request.sampling.logit_bias.begin(), request.sampling.logit_bias.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::lock_guard lock(mutex);
  if (!broken.empty()) throw EngineStopped(cat("the engine has broken down: ", broken));
  if (stopping) throw EngineStopped("the engine has stopped");
  // Those that could run at once do not count as queued.
  const int64_t queued = stats.queued + std::ssize(mail.arrivals);
  if (queued >= int64_t{options.max_queued_requests} + options.max_running_requests - stats.running)
    throw QueueFull(cat("the queue is full: ", queued, " requests wait"));
  mail.arrivals.push_back({++last_id, std::move(request), std::move(listener), Clock::now()});
  wake.notify_one();
  return last_id;
}

// --- one step

// What a device fails with names the steps in flight, whoever waited for it. Nobody waits for them again.
bool Engine::Impl::step() {
  try {
    return take_step();
  } catch (const cuda::DeviceError& failed) {
    const std::string reason = cat(failed.what(), "; in flight: ", in_flight_text());
    fail_in_flight(reason);
    throw cuda::DeviceError(reason);
  }
}

void Engine::Impl::fail_in_flight(const std::string& reason) {
  for (Step& step : in_flight)
    if (step.error.empty()) step.error = reason;
}

bool Engine::Impl::take_step() {
  const Clock::time_point start = Clock::now();
  take_mail();
  const bool busy = !taken.empty() || scheduler.running() + scheduler.waiting() > 0 || !in_flight.empty();
  taken.clear();
  elsewhere = {};
  const auto drafting = scheduler.drafting();
  Batch batch;
  // Nothing behind a step that failed: its rows would stand on what is not there.
  if (in_flight.empty() || in_flight.back().error.empty()) batch = scheduler.plan(std::move(spare.batch));
  elsewhere += std::chrono::duration_cast<Clock::duration>(scheduler.drafting() - drafting);
  if (!batch.empty()) {
    launch(std::move(batch));
    while (std::ssize(in_flight) > options.steps_in_flight) settle_oldest();
  } else if (!in_flight.empty()) {
    settle_oldest();
  } else if (scheduler.running() > 0) {
    const Clock::time_point idle = Clock::now();
    masks.wait([&] { return !scheduler.all_await_masks(); }, kIdleMaskWait);
    elsewhere += Clock::now() - idle;
  }
  scheduler.check_idle();
  scheduling += Clock::now() - start - elsewhere;
  publish();
  return busy;
}

void Engine::Impl::take_mail() {
  {
    const std::lock_guard lock(mutex);
    std::swap(mail, taken);
    taken.count_in(stats);
  }
  for (Mail::Arrival& arrival : taken.arrivals)
    scheduler.add(arrival.id, std::move(arrival.request), std::move(arrival.listener), arrival.submitted);
  for (const RequestId id : taken.cancellations) scheduler.cancel(id);
  for (const RequestId id : taken.give_ups) scheduler.give_up_waiting(id);
  if (taken.flush) scheduler.flush_cache();
}

void Engine::Impl::launch(Batch batch) {
  ++steps;
  scheduler.advance(batch);
  Step& step = in_flight.emplace_back(Step{.batch = std::move(batch), .results = std::move(spare.results)});
  compute(step, [&] {
    begin_masks(step.batch, masks);
    device->launch(step);
  });
  if (step.batch.draws_by_history()) prepare_draws(step);
  compute(step, [&] { device->draw(step); });
}

// While the device computes its rows: the tokens before them are read, and give the masks that it draws under.
void Engine::Impl::prepare_draws(Step& step) {
  if (!step.error.empty()) return;
  while (in_flight.size() > 1) {
    settle_oldest();
    if (step.error.empty()) step.error = spare.error;
  }
  if (!step.error.empty()) return;
  scheduler.fill_in(step.batch);
  compute(step, [&] {
    begin_masks(step.batch, masks);
    wait_for_masks(step.batch, masks);
  });
  for (Share& share : step.batch.shares)
    if (share.awaits_mask()) scheduler.sit_out(share);
}

// What goes wrong with a step, memory included, is the step's; a device that has failed is everybody's.
template <class Work>
void Engine::Impl::compute(Step& step, const Work& work) {
  if (!step.error.empty()) return;
  const Clock::time_point start = Clock::now();
  try {
    work();
  } catch (const cuda::OutOfMemory& error) {
    step.error = error.what();
  } catch (const cuda::DeviceError&) {
    throw;
  } catch (const std::exception& error) {
    step.error = error.what();
  }
  elsewhere += Clock::now() - start;
}

std::string Engine::Impl::in_flight_text() const {
  std::string text;
  for (const Step& step : in_flight)
    text += cat(text.empty() ? "" : "; ", "step ", step.batch.step, ", ", step.batch.rows(), " rows of ",
                step.batch.shares.size(), " requests, ", step.batch.wanted_rows(), " wanted");
  return text;
}

// A step that cannot be computed ends its own requests, and those of the steps that were launched behind it.
void Engine::Impl::settle_oldest() {
  Step& oldest = in_flight.front();
  compute(oldest, [&] { device->finish(oldest); });
  spare = std::move(oldest);
  in_flight.pop_front();
  count_idle(spare);
  if (spare.error.empty())
    scheduler.settle(spare.batch, spare.results);
  else
    scheduler.fail(spare.batch, spare.error);
  spare.batch.clear();  // what it holds of its requests goes with them
}

void Engine::Impl::count_idle(const Step& step) {
  if (!step.error.empty() || !step.results.overlapped || !step.batch.only_single_tokens()) return;
  ++overlapped_steps;
  device_idle += *step.results.idle;
}

void Engine::Impl::publish() {
  const Scheduler::Counters& counters = scheduler.counters();
  const std::chrono::duration<double, std::micro> total = scheduling;
  const std::lock_guard lock(mutex);
  stats = {.running = scheduler.running(),
           .queued = scheduler.waiting(),
           .retracted = scheduler.retracted(),
           .queued_tokens = scheduler.waiting_tokens(),
           .total_pages = limits.pages,
           .free_pages = scheduler.pool().free_pages(),
           .cached_pages = scheduler.cached_pages(),
           .evictable_pages = scheduler.evictable_pages(),
           .page_size = options.page_size,
           .pool_bytes = pool_bytes,
           .steps = steps,
           .prompt_tokens = counters.prompt_tokens,
           .cached_prompt_tokens = counters.cached_prompt_tokens,
           .generated_tokens = counters.generated_tokens,
           .retractions = counters.retractions,
           .started = counters.started,
           .finished = counters.finished,
           .cancelled = counters.cancelled,
           .speculated = counters.speculated,
           .speculated_by_model = counters.speculated_by_model,
           .schedule_us = steps ? total.count() / static_cast<double>(steps) : 0,
           .overlapped_steps = overlapped_steps,
           .idle_us = device_idle.count()};
}

// --- the loop

void Engine::Impl::loop() {
  try {
    for (;;) {
      {
        const std::lock_guard lock(mutex);
        if (stopping) break;
      }
      if (step()) continue;
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return stopping || !mail.empty(); });
    }
    end_all(Finish::cancelled, {});
  } catch (const std::exception& error) {
    break_down(error.what());
  }
}

// Only a broken invariant, or a device that has failed, leads here. Nothing more is computed, but everybody is told.
void Engine::Impl::break_down(const std::string& reason) {
  std::fprintf(stderr, "quire: the engine has broken down: %s\n", reason.c_str());
  {
    const std::lock_guard lock(mutex);
    broken = reason;
  }
  fail_in_flight(reason);
  try {
    end_all(Finish::failed, reason);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quire: and could not end its requests: %s\n", error.what());
  }
  if (options.on_broken) options.on_broken();
}

void Engine::Impl::end_all(Finish finish, const std::string& error) {
  take_mail();
  taken.clear();
  scheduler.finish_all(finish, error);
  while (!in_flight.empty()) settle_oldest();  // nobody is there to be told
  publish();
}

// --- the door

Engine::Engine(const model::Model& model, const EngineOptions& options, Exec& exec, const StepDeviceMaker& make_device)
    : impl_(std::make_unique<Impl>(model, options, exec, make_device)) {}

Engine::~Engine() { stop(); }

const EngineOptions& Engine::options() const { return impl_->options; }

RequestId Engine::submit(Request request, Listener listener) {
  return impl_->submit(std::move(request), std::move(listener));
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping) return;  // everybody is told at the end
  impl_->mail.cancellations.push_back(id);
  impl_->wake.notify_one();
}

void Engine::give_up_waiting(RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping) return;
  impl_->mail.give_ups.push_back(id);
  impl_->wake.notify_one();
}

bool Engine::accepts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->broken.empty() && !impl_->stopping;
}

bool Engine::has_broken_down() const {
  const std::lock_guard lock(impl_->mutex);
  return !impl_->broken.empty();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStats stats = impl_->stats;
  impl_->mail.count_in(stats);
  return stats;
}

void Engine::flush_cache() {
  const std::lock_guard lock(impl_->mutex);
  impl_->mail.flush = true;
  impl_->wake.notify_one();
}

void Engine::start() {
  const std::lock_guard lock(impl_->lifecycle);
  check(!impl_->thread.joinable(), "the engine has been started");
  {
    const std::lock_guard state(impl_->mutex);
    check(!impl_->stopping, "the engine has stopped");
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->loop(); });
}

void Engine::stop() {
  const std::lock_guard lock(impl_->lifecycle);
  {
    const std::lock_guard state(impl_->mutex);
    impl_->stopping = true;
    impl_->wake.notify_one();
  }
  if (impl_->thread.joinable())
    impl_->thread.join();
  else
    impl_->end_all(Finish::cancelled, {});
}

bool Engine::step() { return impl_->step(); }

}  // namespace quire::engine
