#include "engine/eagle_drafts.h"

#include <algorithm>
#include <cmath>

#include "attn/write_metadata.h"
#include "base/check.h"

namespace quire::engine {
namespace {

constexpr int32_t kMostPutOff = 32;  // slots of a request

int32_t branches(const SchedulerLimits& limits) { return limits.running * limits.topk; }

// A row more for each request: the token that was drawn. One request has room with all that was put off of it.
attn::Limits draft_limits(const model::EagleSpec& spec, const SchedulerLimits& limits, const Exec& exec) {
  return model::draft_attention_limits(
      spec, {.batch = limits.running,
             .context = limits.context,
             .page_size = limits.page_size,
             .topk = limits.topk,
             .draft_steps = limits.deepest_draft(),
             .threads = exec.threads(),
             .query_rows = limits.running + std::max(limits.rows() + kMostPutOff, branches(limits)),
             .wanted_rows = branches(limits)});
}

// Slots of branches lie behind the pool's.
int32_t store_pages(const SchedulerLimits& limits) {
  const int32_t slots = limits.verifies_trees() ? branches(limits) * limits.deepest_draft() : 0;
  return limits.pages + 1 + limits.page_size.pages_for(slots);
}

kv::TableView view_of(const kv::RequestTable& table, int32_t pages) {
  kv::TableView view = table.view();
  view.pool_pages = pages;
  return view;
}

size_t row_bytes(int64_t rows, int32_t width) { return static_cast<size_t>(rows * width) * sizeof(float); }

}  // namespace

EagleDrafts::EagleDrafts(const model::EagleHead& head, const SchedulerLimits& limits, Dtype kv_type,
                         const kv::RequestTable& table, Exec& exec)
    : table_(table),
      exec_(exec),
      page_size_(limits.page_size),
      width_(head.spec().width),
      topk_(limits.topk),
      steps_(limits.deepest_draft()),
      view_(view_of(table, store_pages(limits))),
      token_ids_(head.token_ids()),
      store_(model::draft_kv_layout(head.spec(), store_pages(limits), limits.page_size, kv_type)),
      arena_(draft_limits(head.spec(), limits, exec)),
      inputs_(arena_.limits()),
      forward_(head, arena_.limits(), kv_type),
      sampler_(head.spec().draft_vocabulary, exec),
      page_features_(row_bytes(limits.pages + 1, width_)),
      whole_(limits.pages + 1),
      row_features_(row_bytes(limits.running + 1, width_)),
      row_states_(row_bytes(limits.running + 1, width_)),
      put_off_(limits.running + 1),
      first_(int64_t{limits.running + 1} * limits.topk) {}

float* EagleDrafts::row_of(const Buffer& rows, int32_t index) const {
  return reinterpret_cast<float*>(rows.data()) + int64_t{index} * width_;
}

// --- after a step

void EagleDrafts::extend(const Batch& batch, const StepResults& results, Rows<const float> features) {
  begin_step();
  filled_.clear();
  for (const Share& share : batch.shares) {
    begin_pages(share);
    if (!share.followed) continue;
    const DraftSlots slots = draft_slots(share, results, room_of(share.row));
    const Rows<const float> own{features.row(share.first_row), share.count, features.dim, features.stride};
    add_slots(batch, share, slots, own);
    keep_features(share, slots, own);
  }
  run_extend();
  for (const PageId page : filled_) whole_[page.value] = true;
}

void EagleDrafts::catch_up(std::span<const RequestRow> rows) {
  begin_step();
  for (const RequestRow row : rows) {
    const PutOff& late = put_off_[row.value];
    if (late.tokens.empty()) continue;  // what it says is known
    const int32_t end = late.end(), count = end - late.begin;
    make_room(count);
    add_put_off(row, end);
    end_request(row, end, count);
    want_last_row(row);
  }
  run_extend();
}

bool EagleDrafts::has_slots(std::span<const PageId> pages) const {
  return std::all_of(pages.begin(), pages.end(), [&](PageId page) { return whole_[page.value]; });
}

// The pages that the share has written to are no longer what they were.
void EagleDrafts::begin_pages(const Share& share) {
  const std::span<const PageId> pages = table_.pages(share.row);
  const int32_t tokens = page_size_.tokens();
  for (int32_t i = share.position / tokens; i <= (share.end() - 1) / tokens; ++i) whole_[pages[i].value] = false;
}

int32_t EagleDrafts::room_of(RequestRow row) const {
  return static_cast<int32_t>(table_.pages(row).size()) * page_size_.tokens();
}

// The share's row of a token that is in pages now.
int32_t EagleDrafts::row_at(const Share& share, const DraftSlots& slots, int32_t position) {
  return position < share.text_end() ? position - share.position : slots.path[position - share.text_end()];
}

// Whether a token that the step put into pages is the last of one.
bool EagleDrafts::fills_page(const Share& share, const DraftSlots& slots) const {
  return share.position / page_size_.tokens() != slots.committed / page_size_.tokens();
}

void EagleDrafts::add_slots(const Batch& batch, const Share& share, const DraftSlots& slots,
                            Rows<const float> features) {
  PutOff& late = put_off_[share.row.value];
  if (!share.drafted) late = {};  // of whoever had the row before
  const int32_t first = late.tokens.empty() ? slots.begin : late.begin;
  const bool at_once = share.prefills || fills_page(share, slots) || slots.end - first > kMostPutOff;
  const int32_t end = at_once ? std::min(slots.committed, slots.end) : first;  // of those that are computed
  if (first < end) {
    make_room(end - first);
    add_put_off(share.row, end);
  }
  for (int32_t slot = slots.begin; slot < slots.end; ++slot) {
    const bool was_drawn = slot == slots.committed && slots.newest >= 0;
    const int32_t token = was_drawn ? slots.newest : batch.token_ids[share.first_row + row_at(share, slots, slot)];
    const float* const state =
        slot == share.position ? features_before(share) : features.row(row_at(share, slots, slot - 1));
    if (slot < end)
      add_row(table_.slot(share.row, slot), slot, token, state);
    else
      put_off(share.row, slot, token, state);
  }
  if (first < end) end_request(share.row, end, end - first);
}

void EagleDrafts::put_off(RequestRow row, int32_t slot, int32_t token, const float* state) {
  PutOff& late = put_off_[row.value];
  if (late.tokens.empty()) late.begin = slot;
  check(slot == late.end(), "slot ", slot, " was put off after slot ", late.end() - 1);
  late.tokens.push_back(token);
  if (state)
    late.states.insert(late.states.end(), state, state + width_);
  else
    late.states.resize(late.states.size() + width_);
}

// Those before slot `end`.
void EagleDrafts::add_put_off(RequestRow row, int32_t end) {
  PutOff& late = put_off_[row.value];
  const int32_t count = std::clamp(end - late.begin, 0, static_cast<int32_t>(late.tokens.size()));
  for (int32_t i = 0; i < count; ++i)
    add_row(table_.slot(row, late.begin + i), late.begin + i, late.tokens[i], late.states.data() + int64_t{i} * width_);
  late.begin += count;
  late.tokens.erase(late.tokens.begin(), late.tokens.begin() + count);
  late.states.erase(late.states.begin(), late.states.begin() + int64_t{count} * width_);
}

// For so many rows of a request: where there is none, those that are there go first.
void EagleDrafts::make_room(int32_t rows) {
  if (inputs_.query_rows() + rows <= arena_.limits().query_rows) return;
  run_extend();
  begin_step();
}

// Of the token before its first row. A request begins at the beginning of a page.
const float* EagleDrafts::features_before(const Share& share) const {
  if (share.position == 0) return nullptr;
  if (share.position % page_size_.tokens() != 0) return row_of(row_features_, share.row.value);
  return row_of(page_features_, page_size_.page_of(table_.slot(share.row, share.position - 1)).value);
}

void EagleDrafts::keep_features(const Share& share, const DraftSlots& slots, Rows<const float> features) {
  const int32_t tokens = page_size_.tokens();
  for (int32_t position = share.position; position < slots.committed; ++position)
    if ((position + 1) % tokens == 0) {
      const PageId page = page_size_.page_of(table_.slot(share.row, position));
      std::copy_n(features.row(row_at(share, slots, position)), width_, row_of(page_features_, page.value));
      filled_.push_back(page);
    }
  if (slots.committed > share.position)
    std::copy_n(features.row(row_at(share, slots, slots.committed - 1)), width_,
                row_of(row_features_, share.row.value));
}

// --- drafts

int32_t EagleDrafts::draft(std::span<const DraftsWanted> wanted) {
  return topk_ == 1 ? draft_chains(wanted) : draft_trees(wanted);
}

int32_t EagleDrafts::draft_chains(std::span<const DraftsWanted> wanted) {
  struct Chain {
    const DraftsWanted* of;
    const float* state;  // that its last draft's slot begins with
    double path = 1;

    bool grows() const { return std::ssize(*of->drafts) < of->most && path >= of->least; }
    void add(const DraftToken& draft) {
      of->drafts->push_back(draft);
      path *= static_cast<double>(of->record->hit(draft.hit));
    }
  };
  std::vector<Chain> chains;
  for (const DraftsWanted& each : wanted)
    if (each.most > 0) chains.emplace_back(Chain{&each, row_of(row_states_, each.row.value)}).add(first(each.row));
  int32_t passes = 0;
  for (;; ++passes) {
    std::erase_if(chains, [](const Chain& chain) { return !chain.grows(); });
    if (chains.empty()) return passes;
    begin_step();
    for (const Chain& chain : chains) {
      const int32_t slot = chain.of->position + static_cast<int32_t>(chain.of->drafts->size());
      add_row(table_.slot(chain.of->row, slot), slot, chain.of->drafts->back().token, chain.state);
      end_request(chain.of->row, slot + 1, 1);
      want_last_row(chain.of->row);
    }
    run(attn::Mode::decode);
    for (size_t i = 0; i < chains.size(); ++i) {
      chains[i].add(guesses_[i]);
      chains[i].state = forward_.next_states().row(static_cast<int64_t>(i));
    }
  }
}

// All trees take part in every pass, as long as one of them grows: their rows stay where they are.
int32_t EagleDrafts::draft_trees(std::span<const DraftsWanted> wanted) {
  std::vector<GrowingBranches> trees;
  for (const DraftsWanted& each : wanted) {
    if (each.most <= 0) continue;
    GrowingTree tree({.topk = topk_, .depth = steps_, .most = each.most}, *each.record);
    tree.add_level(first_of(each.row));
    trees.push_back({.of = &each, .tree = std::move(tree)});
  }
  const auto one_grows = [&] {
    return std::ranges::any_of(trees, [](const GrowingBranches& each) { return each.tree.grows(each.of->least); });
  };
  int32_t passes = 0;
  for (; one_grows(); ++passes) {
    if (passes == 0) begin_trees(trees);
    add_branches(trees, passes);
    run(attn::Mode::draft_tree, passes);
    for (size_t i = 0; i < trees.size(); ++i)
      trees[i].tree.add_level(guesses_of(static_cast<int64_t>(i) * topk_, topk_));
  }
  for (const GrowingBranches& each : trees) each.tree.take_best(*each.of->drafts);
  return passes;
}

void EagleDrafts::begin_trees(std::span<const GrowingBranches> trees) {
  begin_step();
  for (const GrowingBranches& each : trees) {
    const int32_t b = inputs_.live()++;
    inputs_.rows()[b] = each.of->row;
    inputs_.lengths()[b] = {each.of->position + 1};
    for (int32_t branch = 0; branch < topk_; ++branch)
      for (int32_t pass = 0; pass < steps_; ++pass)
        inputs_.draft_slots()[(int64_t{b} * topk_ + branch) * steps_ + pass] = branch_slot(b, branch, pass);
  }
}

// The rows of a pass, each with the state that the branch which it continues has handed on.
void EagleDrafts::add_branches(std::span<const GrowingBranches> trees, int32_t pass) {
  const attn::StepShape shape{
      .mode = attn::Mode::draft_tree, .captured = inputs_.live(), .query_rows = 0, .draft_step = pass, .table = view_};
  inputs_.query_rows() = inputs_.wanted_count() = inputs_.logits_count() = 0;
  parents_.clear();
  wanted_.clear();
  for (size_t b = 0; b < trees.size(); ++b)
    for (int32_t branch = 0; branch < topk_; ++branch) {
      const auto& [of, tree] = trees[b];
      parents_.push_back(pass == 0 ? branch : tree.continues(branch));
      const float* const state = pass == 0
                                     ? row_of(row_states_, of->row.value)
                                     : forward_.next_states().row(static_cast<int64_t>(b) * topk_ + parents_.back());
      add_row(branch_slot(static_cast<int64_t>(b), branch, pass), of->position + 1 + pass, tree.token(branch), state);
      want_last_row(of->row);
    }
  if (pass > 0) attn::follow_parents(shape, inputs_.inputs(), arena_, pass - 1, parents_.data(), exec_);
}

TokenSlot EagleDrafts::branch_slot(int64_t tree, int32_t branch, int32_t pass) const {
  const int64_t first = store_.layout().slots() - int64_t{arena_.limits().wanted_rows} * steps_;
  return {static_cast<int32_t>(first + (tree * topk_ + branch) * steps_ + pass)};
}

// --- one step of the head

void EagleDrafts::begin_step() {
  inputs_.live() = inputs_.query_rows() = inputs_.wanted_count() = inputs_.logits_count() = 0;
  wanted_.clear();
}

// state: null: zeros
void EagleDrafts::add_row(TokenSlot slot, int32_t position, int32_t token, const float* state) {
  const int32_t i = inputs_.query_rows()++;
  check(i < arena_.limits().query_rows, "a draft step of more than ", i, " rows");
  inputs_.input_ids()[i] = token;
  inputs_.positions()[i] = position;
  inputs_.slot_mapping()[i] = slot;
  if (state)
    std::copy_n(state, width_, forward_.states().row(i));
  else
    std::fill_n(forward_.states().row(i), width_, 0.0f);
}

// Its rows have been added, up to slot `end`.
void EagleDrafts::end_request(RequestRow row, int32_t end, int32_t rows) {
  const int32_t b = inputs_.live()++;
  inputs_.rows()[b] = row;
  inputs_.lengths()[b] = {end};
  inputs_.extend_lengths()[b] = {rows};
}

// What it says comes behind the row that was added last.
void EagleDrafts::want_last_row(RequestRow row) {
  wanted_.push_back(row);
  inputs_.wanted_rows()[inputs_.wanted_count()++] = inputs_.query_rows() - 1;
  inputs_.logits_count() = inputs_.wanted_count();
}

void EagleDrafts::run_extend() {
  run(attn::Mode::draft_extend);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    std::ranges::copy(guesses_of(static_cast<int64_t>(i), 1), first_.begin() + int64_t{wanted_[i].value} * topk_);
    std::copy_n(forward_.next_states().row(static_cast<int64_t>(i)), width_, row_of(row_states_, wanted_[i].value));
  }
}

void EagleDrafts::run(attn::Mode mode, int32_t draft_step) {
  if (inputs_.live() == 0) return;
  const attn::StepShape shape{.mode = mode,
                              .captured = inputs_.live(),
                              .query_rows = inputs_.query_rows(),
                              .draft_step = draft_step,
                              .table = view_};
  attn::check_step(shape, inputs_.inputs(), arena_.limits());
  forward_.run(shape, inputs_.inputs(), arena_, store_, exec_);
  guesses_.resize(wanted_.size() * topk_);
  exec_.parallel(std::ssize(wanted_), [&](int64_t i, int thread) { guess(i, thread); });
}

// The likeliest tokens. A head whose logits are no numbers has nothing to say, and does no harm.
void EagleDrafts::guess(int64_t row, int thread) {
  static const ops::SamplingParams kLikeliest{.temperature = 0};
  DraftToken* const guesses = guesses_.data() + row * topk_;
  const auto said = [&](int32_t token, float logprob) {
    return DraftToken{.token = token_ids_[token], .hit = std::exp(logprob)};
  };
  try {
    const ops::Sampled sampled = sampler_.sample({.logits = forward_.logits().row(row),
                                                  .params = &kLikeliest,
                                                  .position = 0,
                                                  .top_logprobs = topk_ == 1 ? 0 : topk_},
                                                 thread);
    guesses[0] = said(sampled.token, sampled.logprob);
    for (int32_t i = 1; i < topk_; ++i) guesses[i] = said(sampled.top[i].first, sampled.top[i].second);
  } catch (const CheckError&) {
    std::fill_n(guesses, topk_, DraftToken{.token = token_ids_.front(), .hit = 0});
  }
}

}  // namespace quire::engine
