// The engine: requests in, tokens out, batched continuously over one model.
//
// One loop thread does each step: take what was submitted and cancelled, choose rows (decode rows first, then prefill
// chunks within the token budget), forward, sample, tell the listeners. A request that runs out of pages is not failed:
// the youngest of the lowest priority is retracted and comes back later with the same tokens.
//
// Greedy and seeded output, logprobs and pooled rows depend on the request alone: not on the batch, the cached prefix,
// the chunk size, the number of threads or a retraction; on a GPU, where that takes time, if it is `deterministic`.
//
// Errors   submit() throws RequestRefused for what can never run: an empty prompt, a token outside the vocabulary, a
//          prompt that does not leave room for one new token in the context or the pool, bad sampling parameters;
//          QueueFull when the waiting queue is; EngineStopped once it computes nothing any more. Nothing that happens
//          to one request ends another: what a mask throws and logits that are no numbers end the request that they
//          belong to, and a mask that takes long holds up no other. A GPU that fails ends them all: the engine has
//          broken down, and says with which steps in flight. Where a GPU's memory is too small for an engine, the
//          constructor throws cuda::OutOfMemory that says what to lower.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>

#include "base/check.h"
#include "base/exec.h"
#include "engine/drafter.h"
#include "engine/pool_memory.h"
#include "engine/request.h"
#include "model/eagle_head.h"
#include "model/model.h"

namespace quire::engine {

inline constexpr int32_t kTreeSteps = 5;

struct EngineOptions {
  int32_t context = 0;           // most tokens of a request; 0: the model's own
  int32_t vocabulary = 0;        // ids that there are: others are neither taken nor drawn; 0: all that the model has
                                 // logits for, which may be more than its tokenizer has tokens
  int32_t max_total_tokens = 0;  // of the K/V pool; 0: enough for 4 full contexts, within 1/4 of the free memory; on a
                                 // GPU what mem_fraction_static leaves
  double mem_fraction_static = 0.88;  // of a GPU's memory: all that the engine takes, weights and graphs included; the
                                      // rest stays free
  int32_t max_running_requests = 0;   // 0: 64, on a GPU 256
  int32_t max_queued_requests = 1024;
  int32_t page_size = 16;
  Dtype kv_type = Dtype::bf16;
  int32_t prefill_chunk = 0;  // most prompt tokens in a step when nobody decodes; 0: 512, for a GPU 8192
  int32_t mixed_chunk = 0;  // and in a step in which others decode, or fewer where it would hold them up; 0: 64, for a
                            // GPU 512
  bool prefix_cache = true;
  int32_t steps_in_flight = -1;  // launched before the oldest is settled, for a device that answers late; output is the
                                 // same. -1: 0 for a CPU, which answers at once; 1 for a GPU
  bool deterministic = false;    // of a GPU: the same bits in any batch; a CPU's are
  MakeDrafter make_drafter = {};  // null: nothing is drafted. Output is the same, on a GPU if it is deterministic
  const model::EagleHead* head = nullptr;  // that drafts as well, of exec's device; it outlives the engine. null: none
  int32_t speculative_num_draft_tokens = 8;  // most tokens of a request that a step verifies: the newest and drafts
  int32_t speculative_eagle_topk = 1;        // branches of a head's drafts; more than 1: drafts may be trees
  int32_t speculative_num_steps = 0;     // most drafts of a head on a branch; 0: all that are verified, or in a tree
                                         // up to kTreeSteps
  std::function<void()> on_broken = {};  // on the loop thread, after it has broken down and told everybody
};

// Throws CheckError where what they say of drafts does not go together, in the words of the options, which are
// SGLang's: all that needs neither the model nor the device.
void check_draft_options(const EngineOptions& options);

// What an engine with these options will ask of the device's memory beside its weights; head: the shape of the one that
// will draft, null: none. The engine's own reckoning, for who chooses a device before the model is loaded.
MemoryDemand memory_demand(const EngineOptions& options, const model::ModelConfig& config, const model::EagleSpec* head,
                           Device device);

class RequestRefused : public CheckError {
 public:
  using CheckError::CheckError;
};

class EngineStopped : public CheckError {  // or has broken down
 public:
  using CheckError::CheckError;
};

class QueueFull : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct EngineStats {                              // a consistent snapshot
  int32_t running, queued, retracted;             // retracted: of the queued ones
  int64_t queued_tokens;                          // of the requests that wait, to be computed or found
  int32_t total_pages, free_pages, cached_pages;  // cached: held by the prefix tree alone or shared
  int32_t evictable_pages;                        // cached pages that no request uses: as good as free
  int32_t page_size;
  int64_t pool_bytes;  // that the pool's keys and values take, or would if all were in use
  int64_t steps, prompt_tokens, cached_prompt_tokens, generated_tokens, retractions;
  int64_t started, finished, cancelled;        // requests; started: have run; finished: to their end, or failed
  Speculated speculated, speculated_by_model;  // of all requests; the second: of these, with drafts of a draft model
  double schedule_us;  // mean time of a step outside the forward pass, sampling and waits for masks
  // Of a GPU's steps of one token each, where one followed the other: how many, and how long it did nothing before.
  int64_t overlapped_steps;
  double idle_us;  // in all of them
};

class StepDevice;
struct StepDeviceParts;

class Engine {
 public:
  // exec is used by the loop thread alone while it runs. The model outlives the engine. make_device: what computes the
  // steps, where it is not exec's own (step_device.h).
  Engine(const model::Model& model, const EngineOptions& options, Exec& exec,
         const std::function<std::unique_ptr<StepDevice>(const StepDeviceParts&)>& make_device = nullptr);
  ~Engine();  // stop()

  const EngineOptions& options() const;  // with defaults filled in

  // From any thread.
  RequestId submit(Request request, Listener listener);
  void cancel(RequestId id);  // unknown or finished ids are ignored; the listener hears `cancelled` within one step
  void give_up_waiting(RequestId id);  // cancel() for a request that has not run yet; others are left alone
  bool accepts() const;                // false once it has stopped or broken down: nothing is computed any more
  bool has_broken_down() const;
  EngineStats stats() const;
  void flush_cache();  // drops cached prefixes that nobody uses, before the next step

  void start();  // the loop thread; sleeps when there is nothing to do
  void stop();   // cancels what runs, joins the thread; idempotent

  // One step on the calling thread, for tests and single-threaded programs; not while the loop thread runs. False when
  // there was nothing to do.
  bool step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::engine
