// Who computes what in the next step: the waiting queue, the running requests, their pages and the cached prefixes.
// Pure bookkeeping over token ids; it knows no model and no thread.
//
//   add, cancel      requests come and go
//   plan             the next step's rows, with pages for all of them
//   advance          that step is launched: its rows count as computed, its tokens as pending
//   fill_in, sit_out before it draws by history, when all steps before it are settled
//   settle | fail    the oldest step in flight was read, or not computed: tokens, ends, prefixes to be cached
//
// Steps in flight. As many may be planned and launched before the oldest is settled as the device is late; the CPU
// settles each at once. A row whose token is not known yet says so (kFutureToken), and the device has it in time:
//
//   host     plan 1  advance | plan 2  advance  settle 1 | plan 3  advance  settle 2 | ...
//   device                   [ 1 ............][ 2 ................][ 3 .............
//                                               ^ computes the token that 1 drew
//
//   - A request that is sure to end with a pending token (its length) has no row after it. One that turns out to have
//     ended (a stop id, cancel, a failure) has rows in flight: what comes of them is dropped.
//   - The row of the request table and its pages, and pages that others took the place of, are freed when the last step
//     in flight that may read them is settled. Until then whoever lacks them sits out.
//   - Only pages whose rows are settled are cached.
//   - A retracted request keeps the tokens that come of its rows in flight, and is not admitted before.
//   - A request that draws by its text, under a mask or with penalties that the host counts, is launched like others.
//     Only its draw waits, and with it those of its step: the steps before it are settled while its rows are computed.
//   - What fails a step fails the steps in flight behind it.
//
// A step: one token of every request that decodes, then chunks of prompts in order of their turns, within a budget that
// is smaller when somebody decodes (PrefillBudget). Rows of prompts that are wanted themselves (PromptResults) have a
// budget of their own, beside the one row of each request that may draw.
//
// Requests that come together come one after the other all the same, and the first would decode while the prompts of
// the rest are cut to that budget, step after step. So while all that decode have no more than their first tokens
// (kFirstTokens) the prompts of a step are not cut: each of these requests waits for as many rows of prompts as its
// credit has left (SchedulerLimits::first_wait), once in its life.
//
// Drafts (drafter.h) come last, behind the tokens of requests that decode, within a budget (DraftBudget): they take
// pages that are free, so they retract nobody, and what was not accepted is given back when the step is settled, so it
// is never cached. Where the cache has filled the pool no page would be free: there whoever evicts a page for a token
// evicts as many more, cached ones that nobody uses, as drafts of a step may take, and these go around among drafts.
// Drafts that branch (draft_tree.h) are for steps without prompts; beside these each tree gives its best path.
//
// Drafts follow a text's newest token. So where steps overlap, drafting takes turns: while a token is pending its
// request is drafted for as if the likeliest came, and if the budget holds that drafts after it pay, nothing is planned
// before all that is in flight is settled; nor is it while drafts are in flight, or a token of a request that a draft
// model follows: how many drafts are worth a row depends on what the model says of them. All requests wait together:
// two steps that each have half of them take longer than one. Where no draft pays, and nobody is followed, steps
// overlap as if nothing were drafted.
//
// With a draft model (draft_model.h) the token that a step will draw has its page before that step, since the model
// computes its slot in it. While the next step is planned the model is asked for drafts of those requests for which
// that gains (follow_budget.h); a request takes its own drafter's or the model's, whichever promise more. Of cached
// pages the model may have nothing, since they were computed for somebody that it does not follow. Where that pays, one
// request computes what they hold again, into the same pages, and others that may be followed wait for it. A device may
// make them behind each step, before the host has read it: for whoever was asked for when that step was planned, if
// there are free pages for them too, which go back when it is settled.
//
// A request's turn is the step in which it came, less kStepsOfALevel for each level of its priority, and never changes:
// so it has to let only so many others go first, however many come. Pages come from the pool, then from cached prefixes
// that nobody uses, then from the running request whose turn is last, which is retracted: its pages go back and it
// waits for its second turn. The order of running requests is total and pages are only taken from those behind, so the
// first one always gets on and everybody's turn comes.
//
// A request whose mask was not ready when its row was computed is late: it sits out until the mask is ready, and the
// row is computed again. That is known before the next step is planned: no row follows a token that was not drawn.
//
// Errors   check_fits() refuses what can never run. A broken invariant throws CheckError: pages that are missing when
//          nobody runs or waits, or a step that moves nobody.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/batch.h"
#include "engine/draft_budget.h"
#include "engine/draft_model.h"
#include "engine/draft_record.h"
#include "engine/drafter.h"
#include "engine/follow_budget.h"
#include "engine/prefill_budget.h"
#include "engine/request.h"
#include "engine/sequence.h"
#include "engine/step.h"
#include "kv/page_pool.h"
#include "kv/prefix_tree.h"
#include "kv/request_table.h"

namespace quire::engine {

struct SchedulerLimits {
  int32_t context;  // most tokens of a request
  int32_t pages;    // of the pool, without the reserved one
  PageSize page_size;
  int32_t running;        // most requests in a step
  int32_t prefill_chunk;  // most rows of prompts in a step in which nobody decodes
  int32_t mixed_chunk;    // and in one in which somebody does
  bool prefix_cache;
  bool device_counts = false;  // tokens for penalties, as it draws them: these need no token that the host has read
  bool draws_at_once = false;  // the device draws all rows of a share before any is read: nothing is drafted where a
                               // draw depends on those before it, by a mask or penalties
  double first_row_price = DraftBudget::kFirstPrice;  // until it was measured
  int32_t drafts = 0;                                 // most of a request in a step; 0: nothing is drafted
  int32_t topk = 1;             // branches that a draft model follows at once; 1: all drafts are chains (draft_tree.h)
  int32_t draft_steps = 0;      // most tokens on a branch of a draft model's; 0: as many as drafts
  bool draft_model = false;     // drafts come from one as well: a token that is drawn has its slot at once
  bool drafts_at_once = false;  // the device makes these behind each step, unread: their pages are reserved with it
  int32_t row_tile = 1;         // rows that a device multiplies in the time of one (prefill_budget.h)
  int32_t first_wait = 0;       // rows of prompts that a request waits for in all, while its first tokens come

  static constexpr int32_t kFirstTokens = 8;

  static constexpr int32_t kMostKeptRows = 64, kMostDraftRows = 64;  // their logits take memory

  // Most of a step: rows, those of them that a PromptResults wants, drafts, rows that draw, and all that are wanted.
  int32_t rows() const { return std::max(prefill_chunk, mixed_chunk) + drawn_rows(); }
  int32_t kept_rows() const { return std::min(kMostKeptRows, std::max(prefill_chunk, mixed_chunk)); }
  int32_t draft_rows() const {
    return static_cast<int32_t>(std::min<int64_t>(kMostDraftRows, int64_t{running} * drafts));
  }
  int32_t drawn_rows() const { return running + draft_rows(); }
  int32_t wanted_rows() const { return drawn_rows() + kept_rows(); }
  // Of more drafts than a step verifies nobody has any use.
  int32_t deepest_draft() const { return std::min({draft_steps ? draft_steps : drafts, drafts, kMostDraftRows}); }
  bool verifies_trees() const { return topk > 1; }
  // Of a draft model, that follow a step at once, at most: each has a token behind the newest.
  int32_t passes_at_once() const { return draft_model && drafts_at_once ? std::max(0, deepest_draft() - 1) : 0; }
};

// Throws CheckError unless a request with this prompt can run when it is alone.
void check_fits(std::span<const int32_t> prompt, const SchedulerLimits& limits);

// What must hold when nobody runs or waits: every page is free or cached, and no row is open. Otherwise pages were
// lost: says so on stderr and throws CheckError.
void check_pages_are_back(int32_t pages, int32_t free, int32_t cached, int32_t open_rows);

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits, MakeDrafter make_drafter = {});
  // With budgets that have learned something already.
  Scheduler(const SchedulerLimits& limits, MakeDrafter make_drafter, const PrefillBudget& prefill_budget,
            const DraftBudget& draft_budget);

  // Where the limits have one: before the first request, and it outlives them all.
  void set_draft_model(DraftModel& model) {
    draft_model_ = &model;
    missed_.resize(pool_.pages());
  }

  // Ids ascend in the order of add(). The request passed check_fits().
  void add(RequestId id, Request request, Listener listener, Clock::time_point submitted = Clock::now());
  void cancel(RequestId id);           // ids that are unknown or finished are ignored
  void give_up_waiting(RequestId id);  // cancel(), unless it has run
  void finish_all(Finish finish, const std::string& error = {});
  void flush_cache();  // the cached prefixes that nobody uses

  // The next step. Empty only when nobody runs or waits, all that run await their masks, or nobody gets on before a
  // step in flight is settled. recycled: any batch, for its memory.
  Batch plan(Batch recycled = {});
  void advance(const Batch& batch);  // the planned batch, which is not empty
  void fill_in(Batch& batch) const;  // the only one in flight: tokens that were pending, who has ended, who was left
  void sit_out(Share& share);        // of that one: its mask is late, it draws nothing
  void settle(const Batch& batch, StepResults& results);     // the oldest in flight; results are moved from
  void fail(const Batch& batch, const std::string& reason);  // the oldest in flight

  std::chrono::duration<double> drafting() const { return drafting_; }  // time of the draft model, so far

  void check_idle() const;  // check_pages_are_back() when nobody runs or waits and no step is in flight
  void audit() const;       // recounts everything; for tests

  struct Counters {
    int64_t prompt_tokens = 0, cached_prompt_tokens = 0;  // of requests that ran, each counted once
    int64_t generated_tokens = 0, retractions = 0;
    int64_t started = 0, finished = 0, cancelled = 0;      // finished: also those that failed
    Speculated speculated = {}, speculated_by_model = {};  // the second: of these, with drafts of a draft model
  };
  const Counters& counters() const { return counters_; }
  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  bool in_flight() const { return launched_ > settled_; }  // whether a step is
  bool all_await_masks() const;                            // of those that run
  int32_t retracted() const;                               // of those that wait
  int64_t waiting_tokens() const;
  const kv::PagePool& pool() const { return pool_; }
  const kv::RequestTable& table() const { return table_; }
  kv::RequestTable& table() { return table_; }  // for a mirror of it
  int32_t cached_pages() const { return tree_.cached_pages(); }
  int32_t evictable_pages() const { return tree_.cached_pages() - pool_.shared_pages(); }  // cached, and used by nobody

 private:
  enum class Admission : uint8_t { admitted, awaits_others, no_room };

  struct Planned {
    Sequence* sequence;
    int32_t count;                        // of its tokens
    std::vector<DraftToken> drafts = {};  // behind them
    bool by_model = false;                // the draft model has made them
    int32_t passes = 0;                   // and so many for the next, at once

    int32_t end() const { return sequence->computed + count + static_cast<int32_t>(drafts.size()); }
    bool draws() const { return count == sequence->remaining() && sequence->wants_token(); }
  };
  struct Budget {
    int32_t rows;  // of prompts
    int32_t kept;  // those of them that a PromptResults wants
  };
  void plan_decoders();
  int32_t prompt_rows() const;
  int32_t waits_for(const Sequence& sequence) const;
  void plan_prompts(Budget budget);
  void plan_chunk(Sequence& sequence, Budget& budget);
  static int32_t rows_within(const Sequence& sequence, const Budget& budget);
  bool waits_for_tokens();
  void plan_drafts();
  void draft_by_model(const DraftBudget::StepAhead& step, std::span<Planned* const> drafting,
                      std::span<std::vector<DraftToken>* const> chains);
  int32_t draft_by_model(const DraftBudget::StepAhead& step, std::span<Planned* const> drafting);
  static void stop_following(Sequence& sequence);
  void begin_following(Sequence& sequence);
  int32_t tokens_with_slots(std::span<const PageId> pages) const;
  bool is_computed_again(std::span<const PageId> found, int32_t begin) const;
  void forget_missed(const Share& share);
  int32_t most_drafts(const Sequence& sequence) const;
  int32_t reserve_free_pages(const Planned& planned, int32_t drafts);
  void plan_passes();
  int32_t stored_tokens(const Sequence& sequence, int32_t end) const;
  static Share share_of(const Planned& planned);

  Admission try_admit(Sequence& sequence);
  bool awaits_prefix(Sequence& sequence, std::span<const PageId> matched) const;
  bool has_room_for(const Sequence& sequence) const;
  void admit(Sequence& sequence, int32_t matched);

  enum class Pages : uint8_t { reserved, awaited, none };
  Pages reserve_pages(Sequence& sequence, int32_t tokens);
  int32_t tokens_that_fit(const Sequence& sequence, int32_t wanted);
  int32_t pages_missing(const Sequence& sequence, int32_t tokens) const;
  int32_t pages_for_drafts() const;

  void measure(const Batch& batch, const StepResults& results);
  void learn_usual_drafts(const Batch& batch);
  void settle_share(Sequence& sequence, const Share& share, const StepResults::OfShare& own);
  void settle_rows(Sequence& sequence, const Share& share, int32_t tokens);
  void count_drafts(Sequence& sequence, const Share& share, int32_t tokens);
  bool append_tokens(Sequence& sequence, std::span<RowResult> drawn);
  bool append_token(Sequence& sequence, ops::Sampled& sampled);
  void cache_pages(Sequence& sequence);
  void retract(Sequence& sequence);
  void leave(Sequence& sequence);
  void finish(Sequence& sequence, Output last);

  bool in_flight(const Sequence& sequence) const { return sequence.last_step > settled_; }
  void release_retired();

  struct Retired {  // steps in flight may read it: freed when the last of them is settled
    int64_t step;
    RequestRow row;  // with its pages; 0: only the page
    PageId page;
  };
  SchedulerLimits limits_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  kv::PrefixTree tree_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;  // in order of turns: pages are taken from the back
  std::vector<Sequence*> waiting_;  // in order of turns; the retracted up to a level sooner
  std::vector<Planned> planned_;    // those that decode first, then chunks of prompts
  std::vector<Retired> retired_;    // that steps in flight may read
  MakeDrafter make_drafter_;        // null: nobody has a drafter of its own
  DraftModel* draft_model_ = nullptr;
  std::shared_ptr<DraftRates> greedy_rates_ = std::make_shared<DraftRates>();  // of the draft model's drafts, for
  std::shared_ptr<DraftRates> drawn_rates_ = std::make_shared<DraftRates>();   // requests that draw and that do not
  std::chrono::duration<double> drafting_{};
  double usual_drafts_ = 0;  // of a step in which somebody decodes; older ones count less
  PrefillBudget prefill_budget_;
  DraftBudget draft_budget_;
  FollowBudget follow_budget_;
  using Seconds = FollowBudget::Seconds;
  std::vector<Seconds> missed_;  // [pages] by those that found it, the first without slots, and were not followed
  std::vector<std::vector<DraftToken>> chains_ahead_;  // scratch of waits_for_tokens()
  bool has_waited_ = false;                            // for tokens, since the last step was planned
  int64_t plans_ = 0;
  int64_t launched_ = 0, settled_ = 0;  // the newest steps of which that holds
  int64_t departures_ = 0;              // of running requests: without one, a request that found no room finds none now
  Counters counters_;
};

}  // namespace quire::engine
