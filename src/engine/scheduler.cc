#include "engine/scheduler.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/check.h"
#include "engine/draft_tree.h"

namespace quire::engine {
namespace {

// How many more tokens every running request should find room for when another is admitted: fewer, and what was
// admitted would soon be retracted; more, and pages lie idle.
constexpr int32_t kGrowth = 64;

// A prefix that a running request is about to compute is waited for when it saves this many tokens, and a page.
constexpr int32_t kWorthWaiting = 16;

// How many tokens a request generates before its new pages are cached again: that walks through all its tokens, and
// done for every page it would cost more than the rest of a step's bookkeeping.
constexpr int32_t kCachedTogether = 64;

bool runs_before(const Sequence* a, const Sequence* b) { return std::pair(a->turn, a->id) < std::pair(b->turn, b->id); }

// Somebody has read what a retracted request has written: it should go on soon.
bool waits_before(const Sequence* a, const Sequence* b) {
  const auto turn = [](const Sequence& s) { return s.turn - (s.retracted ? kStepsOfALevel - 1 : 0); };
  return std::pair(turn(*a), a->id) < std::pair(turn(*b), b->id);
}

template <class Before>
void insert_in_order(std::vector<Sequence*>& list, Sequence& sequence, Before before) {
  list.insert(std::upper_bound(list.begin(), list.end(), &sequence, before), &sequence);
}

int32_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t length = std::min(a.size(), b.size());
  return static_cast<int32_t>(std::mismatch(a.begin(), a.begin() + length, b.begin()).first - a.begin());
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The end of a request that a row of it cannot go on with.
Output end_by(const RowResult& row) {
  return {.finish = row.refused ? Finish::refused : Finish::failed, .error = row.error};
}

// Those that a share drew, up to a row that could not.
int32_t drawn_tokens(std::span<const RowResult> drawn) {
  int32_t tokens = 0;
  for (const RowResult& row : drawn) {
    if (!row.error.empty()) break;
    tokens += static_cast<int32_t>(row.tokens.size());
  }
  return tokens;
}

// The end of a request that cannot go on with what the step gave it; else Finish::none.
Output keep_results(Sequence& sequence, const StepResults::OfShare& own) {
  for (const RowResult& row : own.scored)
    if (!row.error.empty()) return end_by(row);
  for (RowResult& row : own.scored) sequence.results.add(std::move(row.tokens.front()));
  try {
    for (int64_t i = 0; i < own.pooled.rows; ++i)
      sequence.results.add_row({own.pooled.row(i), static_cast<size_t>(own.pooled.dim)});
  } catch (const CheckError& error) {
    return {.finish = Finish::failed, .error = error.what()};
  }
  return {};
}

// A listener must not throw. One that does harms nobody but itself.
void notify(const Sequence& sequence, Output& output) {
  output.id = sequence.id;
  output.prompt_tokens = sequence.prompt_tokens;
  output.cached_tokens = std::max(sequence.prefix_hit, 0);
  output.generated = sequence.generated();
  output.queued_seconds = sequence.queued_seconds;
  output.speculated = sequence.speculated;
  try {
    sequence.listener(output);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quire: the listener of request %llu threw: %s\n",
                 static_cast<unsigned long long>(sequence.id), error.what());
  } catch (...) {
    std::fprintf(stderr, "quire: the listener of request %llu threw\n", static_cast<unsigned long long>(sequence.id));
  }
}

}  // namespace

void check_fits(std::span<const int32_t> prompt, const SchedulerLimits& limits) {
  const int64_t tokens = std::ssize(prompt) + 1;
  check(!prompt.empty(), "the prompt is empty");
  check(tokens <= limits.context, "a prompt of ", prompt.size(),
        " tokens leaves no room for a new one in the context of ", limits.context);
  const int64_t room = int64_t{limits.pages} * limits.page_size.tokens();
  check(tokens <= room, "a prompt of ", prompt.size(), " tokens leaves no room for a new one in the pool of ", room);
}

Scheduler::Scheduler(const SchedulerLimits& limits, MakeDrafter make_drafter)
    : Scheduler(limits, std::move(make_drafter), PrefillBudget(limits.mixed_chunk, limits.row_tile),
                DraftBudget(limits.drawn_rows(), limits.first_row_price)) {}

Scheduler::Scheduler(const SchedulerLimits& limits, MakeDrafter make_drafter, const PrefillBudget& prefill_budget,
                     const DraftBudget& draft_budget)
    : limits_(limits),
      pool_(limits.pages + 1, limits.page_size),
      table_(pool_, limits.running + 1, limits.context),
      tree_(pool_),
      make_drafter_(std::move(make_drafter)),
      prefill_budget_(prefill_budget),
      draft_budget_(draft_budget) {
  check(limits.topk >= 1 && limits.draft_steps >= 0, "draft trees of ", limits.topk, " branches of ",
        limits.draft_steps, " tokens");
  check(limits.prefill_chunk > 0 && limits.mixed_chunk > 0, "chunks of ", limits.prefill_chunk, " and ",
        limits.mixed_chunk, " prompt tokens: both must be at least 1");
  running_.reserve(limits.running);
  planned_.reserve(limits.running);
}

// --- requests come and go

void Scheduler::add(RequestId id, Request request, Listener listener, Clock::time_point submitted) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->submitted = submitted;
  sequence->turn = plans_ - int64_t{kStepsOfALevel} * request.priority;
  if (request.mask) sequence->mask = std::make_shared<AheadMask>(request.mask);
  const bool draws_by_path = sequence->mask || penalises(request.sampling);
  const bool may_draft = limits_.drafts > 0 && request.speculative && !(limits_.draws_at_once && draws_by_path);
  if (make_drafter_ && may_draft) sequence->drafter = make_drafter_(request);
  if (draft_model_ && may_draft)
    sequence->record.emplace(request.sampling.temperature == 0 ? greedy_rates_ : drawn_rates_);
  sequence->reach = DraftReach(limits_.passes_at_once() + 1);
  sequence->draws_by_history = sequence->mask || (penalises(request.sampling) && !limits_.device_counts);
  sequence->results = PromptResults(request, request.prompt);
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_tokens = sequence->length();
  const int64_t asked =
      request.max_new_tokens < 0 ? limits_.context : int64_t{sequence->length()} + request.max_new_tokens;
  const int64_t in_pool = int64_t{limits_.pages} * limits_.page_size.tokens() + 1;  // the last needs no page
  sequence->most_tokens = static_cast<int32_t>(std::min({asked, int64_t{limits_.context}, in_pool}));
  sequence->request = std::make_shared<const Request>(std::move(request));
  sequence->listener = std::move(listener);
  insert_in_order(waiting_, *sequence, waits_before);
  sequences_.emplace(id, std::move(sequence));
}

void Scheduler::cancel(RequestId id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) finish(*found->second, {.finish = Finish::cancelled});
}

void Scheduler::give_up_waiting(RequestId id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end() && !found->second->has_run()) cancel(id);
}

void Scheduler::finish_all(Finish reason, const std::string& error) {
  while (!sequences_.empty()) finish(*sequences_.begin()->second, {.finish = reason, .error = error});
}

void Scheduler::flush_cache() { tree_.evict(tree_.cached_pages()); }

// --- the plan

Batch Scheduler::plan(Batch recycled) {
  Batch batch(std::move(recycled));
  batch.clear();
  if (waits_for_tokens()) {
    // Beside a request that is followed steps wait whatever is drafted, and what the device does for it is no idleness.
    has_waited_ = std::none_of(running_.begin(), running_.end(), [](const Sequence* s) { return s->followed; });
    return batch;
  }
  ++plans_;
  planned_.clear();
  plan_decoders();
  plan_prompts({.rows = prompt_rows(), .kept = limits_.kept_rows()});
  plan_drafts();
  plan_passes();
  const bool nobody = running_.empty() && waiting_.empty();
  check(!planned_.empty() || nobody || in_flight() || (!running_.empty() && all_await_masks()),
        "no request can go on: ", running_.size(), " run and ", waiting_.size(), " wait, ", pool_.free_pages(), " of ",
        limits_.pages, " pages are free");
  batch.step = launched_ + 1;
  batch.waited = std::exchange(has_waited_, false);
  for (const Planned& planned : planned_) batch.add(share_of(planned), planned.sequence->tokens, planned.drafts);
  return batch;
}

// Beside those that decode, which are planned already, and the drafts that there will be for them.
int32_t Scheduler::prompt_rows() const {
  int32_t uncut = limits_.prefill_chunk;
  for (const Planned& planned : planned_) uncut = std::min(uncut, waits_for(*planned.sequence));
  if (planned_.empty()) return uncut;
  int64_t drafts = 0;  // that there may be
  for (const Planned& planned : planned_)
    if (planned.sequence->speculates() && planned.sequence->pending == 0)
      drafts += std::max(0, most_drafts(*planned.sequence));
  drafts = std::min(drafts, static_cast<int64_t>(usual_drafts_));
  return std::max(uncut, prefill_budget_.rows(static_cast<int32_t>(std::ssize(planned_) + drafts)));
}

// Rows of prompts that it has to wait for, however long they take.
int32_t Scheduler::waits_for(const Sequence& sequence) const {
  const bool has_begun = sequence.length_ahead() - sequence.prompt_tokens <= SchedulerLimits::kFirstTokens;
  return has_begun ? limits_.first_wait - sequence.waited : 0;
}

Share Scheduler::share_of(const Planned& planned) {
  const Sequence& sequence = *planned.sequence;
  const int32_t count = planned.count, drafts = static_cast<int32_t>(planned.drafts.size());
  const bool draws = planned.draws();
  return {.id = sequence.id,
          .row = sequence.row,
          .position = sequence.computed,
          .count = count + drafts,
          .drafts = drafts,
          .by_model = planned.by_model,
          .prefills = sequence.prefills,
          .draws = draws,
          .by_history = draws && sequence.draws_by_history,
          .followed = sequence.followed,
          .drafted = sequence.drafted,
          .passes = planned.passes,
          .generated = sequence.length_ahead() - sequence.prompt_tokens,
          .kept = sequence.kept_rows(sequence.computed + count),
          .request = sequence.request,
          .mask = draws ? sequence.mask : nullptr};
}

bool Scheduler::all_await_masks() const {
  return std::all_of(running_.begin(), running_.end(), [](const Sequence* s) { return s->awaits_mask(); });
}

// Best first, so that whoever lacks a page takes it from requests that have no share yet.
void Scheduler::plan_decoders() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.prefills || !sequence.can_launch()) continue;
    const Pages pages = reserve_pages(sequence, stored_tokens(sequence, sequence.computed + 1));
    if (pages == Pages::reserved)
      planned_.push_back({&sequence, 1});
    else if (pages == Pages::none)
      retract(sequence);
  }
}

// Running prompts and waiting ones in order of their turns, running ones first among equals.
void Scheduler::plan_prompts(Budget budget) {
  size_t next = 0, candidate = 0;
  bool admits = true;
  while (budget.rows > 0) {
    while (next < running_.size() && (!running_[next]->prefills || !running_[next]->can_launch())) ++next;
    Sequence* const prompt = next < running_.size() ? running_[next] : nullptr;
    admits = admits && candidate < waiting_.size();
    if (admits && (!prompt || waiting_[candidate]->turn < prompt->turn)) {
      Sequence& sequence = *waiting_[candidate];
      const Admission admission = try_admit(sequence);
      if (admission == Admission::admitted) {
        plan_chunk(sequence, budget);
        ++next;  // it stands before `prompt` now
      } else if (admission == Admission::awaits_others) {
        ++candidate;
      } else {
        admits = false;  // those behind it do not overtake it
      }
    } else if (prompt) {
      plan_chunk(*prompt, budget);
      ++next;
    } else {
      break;
    }
  }
}

// As much of the prompt as fits the budget and the pages at hand; only the first token takes pages from others.
void Scheduler::plan_chunk(Sequence& sequence, Budget& budget) {
  const int32_t wanted = rows_within(sequence, budget);
  if (wanted == 0) return;  // others keep all that a step can keep; its turn comes when they are done
  const int32_t count = std::max(1, tokens_that_fit(sequence, wanted)), end = sequence.computed + count;
  const Pages pages = reserve_pages(sequence, stored_tokens(sequence, end));
  // Those before it go on, or else all of them await their masks and may need its pages when they go on.
  if (pages == Pages::none && planned_.empty()) retract(sequence);
  if (pages != Pages::reserved) return;
  planned_.push_back({&sequence, count});
  budget.rows -= count;
  budget.kept -= sequence.kept_rows(end).count();
}

int32_t Scheduler::rows_within(const Sequence& sequence, const Budget& budget) {
  const int32_t rows = std::min(sequence.remaining(), budget.rows);
  const PositionRange kept = sequence.kept_rows(sequence.length());
  if (kept.count() <= budget.kept) return rows;
  return std::min(rows, kept.begin - sequence.computed + budget.kept);
}

// --- drafts

// A chain ahead begins with the tokens in flight, which only its path has: they come by themselves.
bool Scheduler::waits_for_tokens() {
  if (limits_.drafts == 0 || !in_flight()) return false;
  const auto awaits_token = [](const Sequence* s) { return s->verifies || (s->followed && s->pending > 0); };
  if (std::any_of(running_.begin(), running_.end(), awaits_token)) return true;
  DraftBudget::StepAhead step{.decoding = 0, .most = limits_.draft_rows()};
  std::vector<std::vector<DraftToken>*> chains;
  chains_ahead_.resize(limits_.running);
  for (Sequence* const sequence : running_) {
    if (sequence->prefills) step.prompt_rows += sequence->remaining();
    if (sequence->prefills || !sequence->can_launch()) continue;
    ++step.decoding;
    step.has_others = step.has_others || !sequence->speculates();
    if (!sequence->drafter || sequence->pending == 0) continue;
    std::vector<DraftToken>& chain = *chains.emplace_back(&chains_ahead_[chains.size()]);
    chain.clear();
    sequence->drafter->propose(sequence->tokens, sequence->pending + limits_.drafts, chain);
    keep_best_path(chain);
    float path = 1;
    const auto known = chain.begin() + std::min<int64_t>(sequence->pending, std::ssize(chain));
    for (auto draft = chain.begin(); draft != known; ++draft) path *= draft->hit;
    chain.erase(chain.begin(), known);
    if (!chain.empty()) chain.front().hit *= path;
  }
  if (chains.empty()) return false;
  step.prompt_rows = std::min(step.prompt_rows, prefill_budget_.rows(step.decoding));
  return draft_budget_.pays(step, chains);
}

// Those that decode are planned, and so is everything else: what is left of the pool is left over.
void Scheduler::plan_drafts() {
  if (limits_.drafts == 0) return;
  DraftBudget::StepAhead step{.decoding = 0, .most = limits_.draft_rows()};
  std::vector<Planned*> drafting;
  for (Planned& planned : planned_) {
    Sequence& sequence = *planned.sequence;
    if (sequence.prefills) step.prompt_rows += planned.count;
    if (sequence.prefills) continue;
    ++step.decoding;
    step.has_others = step.has_others || !sequence.speculates();
    const int32_t most = most_drafts(sequence);
    if (!sequence.speculates() || sequence.pending > 0 || most <= 0) continue;
    if (sequence.drafter) sequence.drafter->propose(sequence.tokens, most, planned.drafts);
    drafting.push_back(&planned);
  }
  if (drafting.empty()) return;
  std::vector<std::vector<DraftToken>*> drafts;
  for (Planned* planned : drafting) drafts.push_back(&planned->drafts);
  if (draft_model_) draft_by_model(step, drafting, drafts);
  if (step.prompt_rows > 0 || !limits_.verifies_trees())
    for (Planned* planned : drafting) keep_best_path(planned->drafts);
  draft_budget_.cut(step, drafts);
  for (Planned* planned : drafting) {
    const int32_t room = reserve_free_pages(*planned, static_cast<int32_t>(planned->drafts.size()));
    planned->drafts.resize(room);
    const Sequence& sequence = *planned->sequence;
    table_.truncate(sequence.row, {stored_tokens(sequence, sequence.computed + planned->count + room)});
  }
}

// Each may bring a token, and one comes without it.
int32_t Scheduler::most_drafts(const Sequence& sequence) const {
  return std::min(limits_.drafts, sequence.most_tokens - sequence.length() - 1);
}

// For those that the model follows, in steps in which that gains something; and what it gains is learned.
void Scheduler::draft_by_model(const DraftBudget::StepAhead& step, std::span<Planned* const> drafting,
                               std::span<std::vector<DraftToken>* const> chains) {
  const bool gains = follow_budget_.gains(step.decoding);
  std::vector<Planned*> asked;
  std::vector<RequestRow> rows;
  std::vector<double> own;  // what their own drafters promise
  for (Planned* const planned : drafting) {
    Sequence& sequence = *planned->sequence;
    const bool tried = sequence.steps_to_try > 0;
    if (sequence.followed && !gains && !tried) stop_following(sequence);
    if (!sequence.followed) continue;
    if (tried) --sequence.steps_to_try;
    const double promised = expected_tokens(planned->drafts);
    const bool was_asked = std::exchange(sequence.asked, follow_budget_.asks(step.decoding, promised) || tried);
    if (!sequence.asked) continue;
    asked.push_back(planned);
    rows.push_back(sequence.row);
    if (was_asked || limits_.passes_at_once() == 0)
      own.push_back(promised);
    else
      ++sequence.steps_to_try;  // there were no passes for it: the next step tells what it gains with them
  }
  if (asked.empty()) return;
  DraftBudget::StepAhead alone = step;  // what it gains without prompts: beside them only likely drafts count
  alone.prompt_rows = 0;
  const DraftBudget::Promise without = draft_budget_.promise(alone, chains);
  const Clock::time_point start = Clock::now();
  draft_model_->catch_up(rows);
  const std::chrono::duration<double> time = Clock::now() - start;
  drafting_ += time;
  follow_budget_.caught_up(step.decoding, time);
  int32_t passes = draft_by_model(step, asked);
  for (const Planned* planned : asked)
    passes = std::max(passes, planned->sequence->passes);  // they took their time, wanted or not
  const auto cost = draft_budget_.time_of_passes(passes) + follow_budget_.step_cost(step.decoding);
  if (!gains) follow_budget_.tried(cost);
  const Seconds unit = draft_budget_.unit();
  if (unit.count() == 0) return;  // what a step takes is not known
  const DraftBudget::Promise with = draft_budget_.promise(alone, chains);
  follow_budget_.compare(step.decoding, own, with.tokens / (with.time + cost / unit), without.tokens / without.time);
}

void Scheduler::stop_following(Sequence& sequence) { sequence.followed = sequence.drafted = false; }

// Whether the model follows it. If so, what it found and the model has nothing of is computed again, into the pages in
// which it is: the target's bits in them stay what they are, whoever reads them meanwhile, and it takes no page.
void Scheduler::begin_following(Sequence& sequence) {
  using Choice = FollowBudget::Choice;
  sequence.followed = false;
  if (!sequence.record) return;
  const std::span<const PageId> found = table_.pages(sequence.row);
  const int32_t begin = tokens_with_slots(found), again = sequence.computed - begin;
  if (again > 0 && is_computed_again(found, begin)) return;
  Seconds* const missed = again > 0 ? &missed_[found[begin / limits_.page_size.tokens()].value] : nullptr;
  const int32_t decoding = std::min(limits_.running, running() + waiting());  // those that wait will do so soon
  const Seconds step = draft_budget_.time_of(decoding);
  const Choice choice = follow_budget_.choose({.decoding = decoding,
                                               .prompt_rows = sequence.remaining() + again,
                                               .step = step,
                                               .again = again,
                                               .missed = missed ? *missed : Seconds{}});
  if (choice == Choice::left) {
    if (missed) *missed += follow_budget_.usual_gain(decoding, step);
    return;
  }
  sequence.followed = sequence.asked = true;
  sequence.steps_to_try = choice == Choice::tried ? FollowBudget::kTried : 0;
  sequence.computed = sequence.settled = begin;
}

// From the first page on, of pages that are full.
int32_t Scheduler::tokens_with_slots(std::span<const PageId> pages) const {
  const auto end = std::ranges::find_if(pages, [&](PageId page) { return !draft_model_->has_slots({&page, 1}); });
  return static_cast<int32_t>(end - pages.begin()) * limits_.page_size.tokens();
}

// The page that begins with this token, by one that runs: no two write to a page in the same step.
bool Scheduler::is_computed_again(std::span<const PageId> found, int32_t begin) const {
  const int32_t index = begin / limits_.page_size.tokens();
  return std::ranges::any_of(running_, [&](const Sequence* other) {
    const std::span<const PageId> pages = table_.pages(other->row);
    return index < std::ssize(pages) && pages[index] == found[index] &&
           other->computed < begin + limits_.page_size.tokens();
  });
}

// In place of those of a request's own drafter, where these are less likely. The first is known; if it is no likelier,
// nothing more is asked of the model. Returns how many passes it took.
int32_t Scheduler::draft_by_model(const DraftBudget::StepAhead& step, std::span<Planned* const> drafting) {
  std::vector<std::vector<DraftToken>> drafts(drafting.size());
  std::vector<DraftsWanted> wanted;
  std::vector<Planned*> wanting;
  for (Planned* const planned : drafting) {
    Sequence& sequence = *planned->sequence;
    check(sequence.drafted, "the draft model has no slot of request ", sequence.id, "'s newest token");
    const DraftToken first = draft_model_->first(sequence.row);
    sequence.record->learn(sequence.tokens);
    sequence.record->propose(sequence.tokens, {&first, 1});
    if (!planned->drafts.empty() && planned->drafts.front().hit >= sequence.record->hit(first.hit)) continue;
    const int32_t most =
        limits_.verifies_trees() ? most_drafts(sequence) : std::min(most_drafts(sequence), limits_.deepest_draft());
    wanted.push_back({.row = sequence.row,
                      .position = sequence.computed,
                      .most = reserve_free_pages(*planned, most),
                      .least = 0,
                      .record = &*sequence.record,
                      .drafts = &drafts[wanting.size()]});
    wanting.push_back(planned);
  }
  if (wanted.empty()) return 0;
  const double least = draft_budget_.least_path(step, static_cast<int32_t>(wanted.size()));
  for (DraftsWanted& each : wanted) each.least = least;
  const Clock::time_point start = Clock::now();
  const int32_t passes = draft_model_->draft(wanted);
  const std::chrono::duration<double> time = Clock::now() - start;
  drafting_ += time;
  draft_budget_.drafted(passes, time);
  for (size_t i = 0; i < wanting.size(); ++i) {
    Sequence& sequence = *wanting[i]->sequence;
    sequence.record->propose(sequence.tokens, drafts[i]);
    for (DraftToken& draft : drafts[i]) draft.hit = sequence.record->hit(draft.hit);
    if (!drafts[i].empty()) sequence.reach.add(drafts[i]);  // else there was no page for any
    if (expected_tokens(drafts[i]) > expected_tokens(wanting[i]->drafts)) {
      wanting[i]->drafts = std::move(drafts[i]);
      wanting[i]->by_model = true;
    }
  }
  return passes;
}

// Pages for so many drafts, as far as there are free ones; it has those for its tokens. How many have room.
int32_t Scheduler::reserve_free_pages(const Planned& planned, int32_t drafts) {
  const Sequence& sequence = *planned.sequence;
  const int64_t pages = std::ssize(table_.pages(sequence.row)) + pool_.free_pages();
  const auto stored = [&] { return stored_tokens(sequence, sequence.computed + planned.count + drafts); };
  while (drafts > 0 && limits_.page_size.pages_for(stored()) > pages) --drafts;
  check(table_.reserve(sequence.row, {stored()}), "free pages are not free");
  return drafts;
}

// Where drafts are made behind the step: for those that are likely to be asked for, and may use more than the first,
// from what is left of the pool. A request has its passes behind all tokens that may come of this step; those of trees
// have slots of their own.
void Scheduler::plan_passes() {
  const int32_t most = limits_.passes_at_once();
  if (most == 0) return;
  DraftBudget::StepAhead next{.decoding = 0, .most = limits_.draft_rows()};
  std::vector<Planned*> wanting;
  std::vector<const DraftReach*> reaches;
  for (Planned& planned : planned_) {
    const Sequence& sequence = *planned.sequence;
    const int32_t next_drafts = sequence.most_tokens - sequence.length_ahead() - 2;
    next.decoding += planned.draws();
    if (!sequence.followed || !sequence.asked || !planned.draws() || next_drafts <= 1) continue;
    wanting.push_back(&planned);
    reaches.push_back(&sequence.reach);
  }
  if (wanting.empty()) return;
  const int32_t passes = draft_budget_.passes(next, reaches, most);
  for (Planned* planned : wanting) {
    const int32_t tokens = planned->end() + 1 + (limits_.verifies_trees() ? 0 : most);
    const bool has_pages = passes > 0 && tokens <= limits_.context && table_.reserve(planned->sequence->row, {tokens});
    planned->passes = has_pages ? passes : 0;
  }
}

// Of a text that is computed up to `end`: with a draft model also the token that is drawn then, unless it is the last.
int32_t Scheduler::stored_tokens(const Sequence& sequence, int32_t end) const {
  if (!limits_.draft_model || end < sequence.length_ahead()) return end;
  return std::max(end, std::min(end + 1, sequence.most_tokens - 1));
}

// --- admission

Scheduler::Admission Scheduler::try_admit(Sequence& sequence) {
  if (table_.open_rows() == limits_.running || sequence.refused_at == departures_) return Admission::no_room;
  if (in_flight(sequence)) return Admission::awaits_others;  // it was retracted, and may end
  const Sequence* const awaited = sequence.awaited;
  if (awaited && !awaited->awaits_mask() && awaited->settled < sequence.awaited_tokens) return Admission::awaits_others;
  std::vector<PageId> matched;
  if (limits_.prefix_cache) {
    matched = tree_.match(sequence.request->salt, std::span(sequence.tokens).first(sequence.shareable()));
    if (awaits_prefix(sequence, matched)) return Admission::awaits_others;
  }
  sequence.row = table_.open();
  table_.append_shared(sequence.row, matched);  // held from here on, so they do not count as evictable
  if (!running_.empty() && !has_room_for(sequence)) {
    table_.close(sequence.row);
    sequence.row = {0};
    sequence.refused_at = departures_;
    return Admission::no_room;
  }
  admit(sequence, static_cast<int32_t>(matched.size()) * limits_.page_size.tokens());
  return Admission::admitted;
}

// Only for what runs, awaits no mask, has no later turn and a common prefix longer than what the tree has: that will be
// there. So will be slots of the draft model, for one that it may follow.
bool Scheduler::awaits_prefix(Sequence& sequence, std::span<const PageId> matched) const {
  const int32_t page_tokens = limits_.page_size.tokens(), there = static_cast<int32_t>(matched.size()) * page_tokens;
  const int32_t with_slots = sequence.record ? tokens_with_slots(matched) : there;
  sequence.awaited = nullptr;
  for (const Sequence* other : running_) {
    const bool in_prompt = other->prefills || other->settled < other->prompt_tokens;
    if (!in_prompt || other->awaits_mask() || other->turn > sequence.turn) continue;
    if (other->request->salt != sequence.request->salt) continue;
    const int32_t common = std::min(common_prefix(sequence.tokens, other->tokens), sequence.shareable());
    const int32_t whole = common / page_tokens * page_tokens;
    const int32_t gained = whole - (other->followed ? with_slots : there);
    if (other->settled >= whole || gained < std::max(page_tokens, kWorthWaiting)) continue;
    sequence.awaited = other;
    sequence.awaited_tokens = whole;
    return true;
  }
  return false;
}

// For all that runs and for this one: the rest of the prompt and some tokens more.
bool Scheduler::has_room_for(const Sequence& sequence) const {
  const auto to_come = [&](const Sequence& s) {
    return std::max(0, pages_missing(s, std::min(s.length() + kGrowth, s.most_tokens)));
  };
  int64_t needed = to_come(sequence);
  for (const Sequence* other : running_) needed += to_come(*other);
  return needed <= pool_.free_pages() || needed <= pool_.free_pages() + tree_.evictable_pages();
}

void Scheduler::admit(Sequence& sequence, int32_t matched) {
  sequence.computed = sequence.settled = matched;
  sequence.prefills = true;
  begin_following(sequence);
  if (!sequence.has_run()) {
    ++counters_.started;
    sequence.queued_seconds = seconds_since(sequence.submitted);
    sequence.prefix_hit = std::min(sequence.computed, sequence.prompt_tokens);
    counters_.prompt_tokens += sequence.prompt_tokens;
    counters_.cached_prompt_tokens += sequence.prefix_hit;
    sequence.tokens.reserve(sequence.most_tokens);
  }
  std::erase(waiting_, &sequence);
  insert_in_order(running_, sequence, runs_before);
}

// --- pages

int32_t Scheduler::pages_missing(const Sequence& sequence, int32_t tokens) const {
  return limits_.page_size.pages_for(tokens) - static_cast<int32_t>(table_.pages(sequence.row).size());
}

// How many of the wanted tokens find pages in the pool and in the cache.
int32_t Scheduler::tokens_that_fit(const Sequence& sequence, int32_t wanted) {
  const int32_t missing = pages_missing(sequence, sequence.computed + wanted);
  if (missing > pool_.free_pages()) tree_.evict(missing - pool_.free_pages());
  const int64_t pages = std::ssize(table_.pages(sequence.row)) + pool_.free_pages();
  return static_cast<int32_t>(std::min<int64_t>(pages * limits_.page_size.tokens() - sequence.computed, wanted));
}

// Pages for the sequence's first `tokens`: from the pool, from the cache, from those that run behind it.
Scheduler::Pages Scheduler::reserve_pages(Sequence& sequence, int32_t tokens) {
  while (!table_.reserve(sequence.row, {tokens})) {
    if (tree_.evict(pages_missing(sequence, tokens) - pool_.free_pages() + pages_for_drafts()) > 0) continue;
    if (!retired_.empty()) return Pages::awaited;
    if (running_.back() == &sequence) return Pages::none;
    retract(*running_.back());
  }
  return Pages::reserved;
}

// That a cache which has filled the pool leaves free once: drafts take free pages alone and give them back, and there
// would never be any. No draft needs more than one, and no pass.
int32_t Scheduler::pages_for_drafts() const {
  const auto drafting =
      std::count_if(running_.begin(), running_.end(), [](const Sequence* s) { return s->speculates(); });
  const auto requests = static_cast<int32_t>(drafting), passes = limits_.passes_at_once();
  return std::min(requests * limits_.page_size.pages_for(limits_.drafts + passes),
                  limits_.draft_rows() + requests * passes);
}

// At once when they are settled, so that others share them while this one still runs. Where the tree has other pages
// for the same tokens, their bits are the same: this request goes on with those and gives its own back.
void Scheduler::cache_pages(Sequence& sequence) {
  if (!limits_.prefix_cache) return;
  const std::span<const int32_t> tokens = std::span(sequence.tokens).first(sequence.settled);
  const std::span<const PageId> own = table_.pages(sequence.row);
  for (const auto& [index, page] : tree_.insert(sequence.request->salt, tokens, own)) {
    if (in_flight(sequence)) {
      pool_.retain(own[index]);
      retired_.push_back({.step = sequence.last_step, .row = {0}, .page = own[index]});
    }
    pool_.retain(page);
    table_.replace_page(sequence.row, index, page);
    if (sequence.followed && !draft_model_->has_slots({&page, 1})) stop_following(sequence);
  }
}

void Scheduler::retract(Sequence& sequence) {
  ++counters_.retractions;
  std::erase_if(planned_, [&](const Planned& planned) { return planned.sequence == &sequence; });
  cache_pages(sequence);
  leave(sequence);
  sequence.retracted = true;
  insert_in_order(waiting_, sequence, waits_before);
}

// Out of the running ones, or out of the queue.
void Scheduler::leave(Sequence& sequence) {
  if (!sequence.runs()) {
    std::erase(waiting_, &sequence);
    return;
  }
  retired_.push_back({.step = sequence.last_step, .row = sequence.row, .page = {0}});
  release_retired();
  sequence.row = {0};
  sequence.computed = sequence.settled = 0;
  sequence.prefills = sequence.late = sequence.followed = sequence.drafted = sequence.verifies = false;
  std::erase(running_, &sequence);
  for (Sequence* other : waiting_)
    if (other->awaited == &sequence) other->awaited = nullptr;
}

// Those that no step in flight reads.
void Scheduler::release_retired() {
  std::erase_if(retired_, [&](const Retired& retired) {
    if (retired.step > settled_) return false;
    if (retired.row.value != 0)
      table_.close(retired.row);
    else
      pool_.release(retired.page);
    ++departures_;
    return true;
  });
}

// --- steps in flight

void Scheduler::advance(const Batch& batch) {
  check(batch.step == launched_ + 1 && !batch.empty(), "step ", batch.step, " was launched after step ", launched_);
  launched_ = batch.step;
  const int32_t prompt_rows = batch.prompt_rows();
  for (const Share& share : batch.shares) {
    Sequence& sequence = *sequences_.at(share.id);
    if (draft_model_) forget_missed(share);
    if (!share.prefills && waits_for(sequence) > 0) sequence.waited += prompt_rows;
    sequence.computed = share.text_end();
    sequence.drafted = share.draws && sequence.followed;
    sequence.passes = share.passes;
    sequence.verifies = share.drafts > 0;
    sequence.last_step = batch.step;
    sequence.late = false;
    sequence.prefills = sequence.prefills && sequence.remaining() > 0;
    sequence.pending += share.draws;
  }
}

// Pages that are written to are no longer those that were found.
void Scheduler::forget_missed(const Share& share) {
  const std::span<const PageId> pages = table_.pages(share.row);
  const int32_t tokens = limits_.page_size.tokens();
  for (int32_t i = share.position / tokens; i <= (share.end() - 1) / tokens; ++i) missed_[pages[i].value] = {};
}

void Scheduler::fill_in(Batch& batch) const {
  check(batch.step == launched_ && batch.step == settled_ + 1, "step ", batch.step, " is to be filled in after step ",
        settled_, " of ", launched_);
  for (Share& share : batch.shares) {
    const auto found = sequences_.find(share.id);
    share.followed = share.followed && found != sequences_.end() && found->second->followed;
    if (!share.by_history) continue;
    share.sits_out = found == sequences_.end();
    if (share.sits_out || share.history.count == 0) continue;
    const auto history = batch.history.begin() + share.history.begin;
    for (int32_t at = share.text_end() - 1; history[at] == kFutureToken; --at) history[at] = found->second->tokens[at];
  }
}

// As if its last row had not been launched: when it is again, it has all tokens before it.
void Scheduler::sit_out(Share& share) {
  Sequence& sequence = *sequences_.at(share.id);
  check(share.by_history && sequence.last_step == settled_ + 1, "request ", share.id, " cannot sit out");
  share.sits_out = sequence.late = true;
  --sequence.pending;
  sequence.computed = share.text_end() - 1;
  sequence.prefills = share.prefills;
}

void Scheduler::settle(const Batch& batch, StepResults& results) {
  check(batch.step == settled_ + 1 && in_flight(), "step ", batch.step, " was settled after step ", settled_);
  check(results.drawn.size() == batch.drawn.size() && results.scored.size() == batch.scored.size() &&
            results.pooled.size() == batch.pooled.size() * results.width,
        results.drawn.size(), " tokens, ", results.scored.size(), " scores and ", results.pooled.size(), " numbers of ",
        results.width, " for a step that wants ", batch.drawn.size(), ", ", batch.scored.size(), " and ",
        batch.pooled.size(), " rows");
  settled_ = batch.step;
  measure(batch, results);
  for (const Share& share : batch.shares)
    if (const auto found = sequences_.find(share.id); found != sequences_.end())  // else it has ended since
      settle_share(*found->second, share, results.of(share));
  release_retired();
}

// Nothing but the size of chunks and the number of drafts depends on it. From a step whose prompts were not cut the
// budget of prompts learns nothing: its rows may cost less than those of the steps that it is for.
void Scheduler::measure(const Batch& batch, const StepResults& results) {
  if (batch.waited && results.idle) draft_budget_.turned(*results.idle);
  constexpr int32_t kMany = 32;  // rows of prompts, beside which others are few
  int32_t followed_prompts = 0;  // rows
  for (const Share& share : batch.shares) followed_prompts += share.prefills && share.followed ? share.count : 0;
  if (followed_prompts >= kMany) follow_budget_.followed_prompt(followed_prompts, results.following);
  const int32_t prompt_rows = batch.prompt_rows(), decoding = batch.rows() - prompt_rows;
  if (prompt_rows >= kMany) follow_budget_.computed_prompt(prompt_rows, results.time - results.following);
  if (decoding > 0) learn_usual_drafts(batch);
  if (results.time.count() <= 0) return;
  if (decoding == 0) return prefill_budget_.measured(0, prompt_rows, results.time);
  follow_budget_.stepped(results.time);
  if (prompt_rows > limits_.mixed_chunk) return;
  prefill_budget_.measured(decoding, prompt_rows, results.time);
  if (limits_.drafts == 0 || prompt_rows > 0) return;
  draft_budget_.measured(decoding, results.time - results.following);
  if (batch.is_followed()) follow_budget_.followed_step(static_cast<int32_t>(batch.shares.size()), results.following);
}

void Scheduler::learn_usual_drafts(const Batch& batch) {
  constexpr double kNew = 0.25;
  int32_t drafts = 0;
  for (const Share& share : batch.shares) drafts += share.drafts;
  usual_drafts_ += kNew * (drafts - usual_drafts_);
}

void Scheduler::settle_share(Sequence& sequence, const Share& share, const StepResults::OfShare& own) {
  sequence.pending -= share.draws && !share.sits_out;
  if (share.drafts > 0) sequence.verifies = false;
  if (Output end = keep_results(sequence, own); end.finish != Finish::none) return finish(sequence, std::move(end));
  const int32_t tokens = drawn_tokens(own.drawn);
  check(tokens < 2 || !in_flight(sequence), "several tokens for a request that has gone on already");
  const int32_t settled = sequence.settled;
  if (sequence.runs()) settle_rows(sequence, share, tokens);
  if (share.drafts > 0 && tokens > 0) count_drafts(sequence, share, tokens);
  if (share.draws) {
    check(tokens > 0 || share.sits_out || !own.drawn.front().error.empty(), "request ", sequence.id, " drew nothing");
    if (!append_tokens(sequence, own.drawn)) return;
    if (sequence.runs() && sequence.remaining() > 1) sequence.prefills = true;  // those between are not in pages
  } else if (share.end() == sequence.length()) {                                // nothing was to be generated
    return finish(sequence, {.prompt_logprobs = sequence.results.take_logprobs(),
                             .embedding = sequence.results.embedding(),
                             .finish = Finish::length});
  }
  const int32_t together = std::max(kCachedTogether, limits_.page_size.tokens());
  if (sequence.runs() && (share.prefills || settled / together != sequence.settled / together)) cache_pages(sequence);
}

// Before its tokens are appended. The newest is never in pages; a row that sat out stays to be computed, and so do
// those behind drafts that did not come. Pages behind these, and behind the newest, go back.
void Scheduler::settle_rows(Sequence& sequence, const Share& share, int32_t tokens) {
  if (share.sits_out && in_flight(sequence)) return;  // its row is being computed again
  sequence.settled = share.draws ? std::min(share.end(), sequence.length() + tokens - 1) : share.end();
  if (share.drafts > 0) sequence.computed = sequence.settled;
  if (share.drafts == 0 && share.passes == 0) return;
  const int32_t end = std::max({sequence.settled, share.text_end(), sequence.computed});  // rows in flight, too
  table_.truncate(sequence.row, {stored_tokens(sequence, end)});
}

// Tokens past the first, which there is, were drawn from rows of drafts that came.
void Scheduler::count_drafts(Sequence& sequence, const Share& share, int32_t tokens) {
  sequence.speculated.add(share.drafts, tokens - 1);
  counters_.speculated.add(share.drafts, tokens - 1);
  if (share.by_model) counters_.speculated_by_model.add(share.drafts, tokens - 1);
}

// False when the request has ended with them, and is gone.
bool Scheduler::append_tokens(Sequence& sequence, std::span<RowResult> drawn) {
  for (RowResult& row : drawn) {
    if (!row.error.empty()) {
      finish(sequence, end_by(row));
      return false;
    }
    for (ops::Sampled& sampled : row.tokens)
      if (!append_token(sequence, sampled)) return false;
  }
  return true;
}

// False when the request has ended with it, and is gone.
bool Scheduler::append_token(Sequence& sequence, ops::Sampled& sampled) {
  sequence.tokens.push_back(sampled.token);
  ++counters_.generated_tokens;
  Output output{.token = sampled.token, .prompt_logprobs = sequence.results.take_logprobs()};
  if (sequence.request->top_logprobs >= 0) output.logprobs = as_logprob(std::move(sampled));
  if (stops_at(*sequence.request, output.token))
    output.finish = Finish::stop;
  else if (sequence.length() == sequence.most_tokens)
    output.finish = Finish::length;
  if (output.finish == Finish::none) {
    notify(sequence, output);
    return true;
  }
  finish(sequence, std::move(output));
  return false;
}

void Scheduler::fail(const Batch& batch, const std::string& reason) {
  check(batch.step == settled_ + 1 && in_flight(), "step ", batch.step, " failed after step ", settled_);
  std::vector<Sequence*> failed;  // with rows in this step or in one behind it
  for (const auto& [id, sequence] : sequences_)
    if (in_flight(*sequence)) failed.push_back(sequence.get());
  settled_ = batch.step;
  std::sort(failed.begin(), failed.end(), [](const Sequence* a, const Sequence* b) { return a->id < b->id; });
  for (Sequence* sequence : failed) finish(*sequence, {.finish = Finish::failed, .error = reason});
  release_retired();
}

void Scheduler::finish(Sequence& sequence, Output last) {
  if (sequence.runs() && last.finish != Finish::failed) cache_pages(sequence);
  leave(sequence);
  if (!sequence.has_run()) sequence.queued_seconds = seconds_since(sequence.submitted);
  ++(last.finish == Finish::cancelled ? counters_.cancelled : counters_.finished);
  const auto owner = sequences_.extract(sequence.id);
  notify(sequence, last);
}

// --- checks

void check_pages_are_back(int32_t pages, int32_t free, int32_t cached, int32_t open_rows) {
  if (free + cached == pages && open_rows == 0) return;
  const std::string text = cat("pages were lost: nothing runs or waits, and of ", pages, " pages ", free,
                               " are free and ", cached, " cached; ", open_rows, " request rows are open");
  std::fprintf(stderr, "quire: %s\n", text.c_str());
  throw CheckError(text);
}

int32_t Scheduler::retracted() const {
  return static_cast<int32_t>(
      std::count_if(waiting_.begin(), waiting_.end(), [](const Sequence* sequence) { return sequence->retracted; }));
}

int64_t Scheduler::waiting_tokens() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : waiting_) tokens += sequence->length();
  return tokens;
}

void Scheduler::check_idle() const {
  if (running_.empty() && waiting_.empty() && !in_flight())
    check_pages_are_back(limits_.pages, pool_.free_pages(), tree_.cached_pages(), table_.open_rows());
}

void Scheduler::audit() const {
  pool_.audit();
  tree_.audit();
  check(sequences_.size() == running_.size() + waiting_.size(), "audit: ", sequences_.size(), " requests, of which ",
        running_.size(), " run and ", waiting_.size(), " wait");
  check(std::is_sorted(running_.begin(), running_.end(), runs_before), "audit: running requests are out of order");
  check(std::is_sorted(waiting_.begin(), waiting_.end(), waits_before), "audit: waiting requests are out of order");
  check(evictable_pages() == tree_.evictable_pages(), "audit: of ", cached_pages(), " cached pages ", evictable_pages(),
        " count as evictable and ", tree_.evictable_pages(), " are");
  const auto retired_rows =
      std::count_if(retired_.begin(), retired_.end(), [](const Retired& retired) { return retired.row.value != 0; });
  check(table_.open_rows() == running() + retired_rows, "audit: ", table_.open_rows(), " rows are open for ", running(),
        " requests and ", retired_rows, " that are read by steps in flight");
  for (const Sequence* sequence : running_)
    check(in_flight(*sequence) || pages_missing(*sequence, stored_tokens(*sequence, sequence->length()) + 1) >= 0,
          "audit: request ", sequence->id, " has ", table_.pages(sequence->row).size(), " pages for ",
          sequence->computed, " tokens");
  check_idle();
}

}  // namespace quire::engine
