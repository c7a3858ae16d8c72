#include "engine/gpu_drafts.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>

#include "attn/write_metadata.h"
#include "base/check.h"
#include "base/device_array.h"

namespace quire::engine {
namespace {

attn::Limits gpu_draft_limits(const model::EagleSpec& spec, const SchedulerLimits& limits, const Exec& exec) {
  const int32_t in_passes = limits.running * std::max(1, limits.deepest_draft() - 1);
  return model::draft_attention_limits(spec, {.batch = limits.running,
                                              .context = limits.context,
                                              .page_size = limits.page_size,
                                              .draft_steps = limits.deepest_draft(),
                                              .threads = exec.threads(),
                                              .query_rows = std::max(limits.rows() + limits.running, in_passes),
                                              .wanted_rows = limits.running,
                                              .device = Device::cuda});
}

size_t rows_of_floats(int64_t rows, int64_t width) { return static_cast<size_t>(rows * width) * sizeof(float); }
size_t ints(int64_t count) { return static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(int32_t); }
size_t picks(int64_t count) { return static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(model::PickedDraft); }

}  // namespace

GpuDrafts::GpuDrafts(const model::EagleHead& head, const SchedulerLimits& limits, Dtype kv_type,
                     const kv::RequestTable& table, const Runner& runner, const int32_t* drawn, bool deterministic,
                     Exec& exec)
    : head_(head),
      table_(table),
      runner_(runner),
      drawn_(drawn),
      exec_(exec),
      running_(limits.running),
      pages_(limits.pages + 1),
      most_passes_(std::max(0, limits.deepest_draft() - 1)),
      context_(limits.context),
      most_drafts_(limits.drafts),
      draft_rows_(limits.draft_rows()),
      page_size_(limits.page_size),
      width_(head.spec().width),
      store_(model::draft_kv_layout(head.spec(), pages_, limits.page_size, kv_type), Place::device),
      arena_(gpu_draft_limits(head.spec(), limits, exec), Place::device),
      forward_(head, arena_.limits(), kv_type, deterministic),
      walked_step_(sizeof(model::WalkedStep), Place::pinned),
      walked_shares_(static_cast<size_t>(running_) * sizeof(model::WalkedShare), Place::pinned),
      inputs_(arena_.limits(), Place::device),
      passing_(ints(1), Place::device),
      state_rows_(ints(arena_.limits().query_rows), Place::device),
      kept_rows_(ints(running_), Place::device),
      kept_(rows_of_floats(running_ + 1 + pages_, width_), Place::device),
      pass_positions_(ints(int64_t{most_passes_} * running_), Place::device),
      pass_slots_(ints(int64_t{most_passes_} * running_), Place::device),
      all_rows_(ints(1), Place::device),
      pass_tokens_(ints(running_), Place::device),
      first_picked_(picks(running_), Place::pinned),
      passed_(picks(int64_t{most_passes_} * running_), Place::pinned),
      first_(running_ + 1),
      passed_at_(running_ + 1, -1) {
  const Buffer zeros(rows_of_floats(1, width_), Place::pinned);
  std::fill_n(of<float>(zeros), width_, 0.0f);
  for (const Buffer* pinned : {&walked_step_, &walked_shares_, &first_picked_, &passed_})
    std::ranges::fill(pinned->bytes(), std::byte{0});
  exec_.stream()->copy(kept_.data(), zeros.data(), zeros.size());
  exec_.wait();
  capture();
}

// --- graphs

// Rows of a round are those of all that may come: from one of each request to all drafts of each.
void GpuDrafts::capture() {
  const std::vector<int> sizes = padded_sizes(running_, Device::cuda);
  for (const int requests : sizes) {
    std::vector<int> rows;
    for (int count = requests; count < most_recorded_rows(requests); count *= 2) rows.push_back(count);
    rows.push_back(most_recorded_rows(requests));
    extend_graphs_[requests].capture(exec_, rows, [&](int count) { record_extend(requests, count); });
  }
  if (most_passes_ > 0) pass_graphs_.capture(exec_, sizes, [&](int requests) { record_passes(requests); });
}

// A request that is not followed has the slot of its text's last row, too.
int32_t GpuDrafts::most_recorded_rows(int32_t requests) const {
  return std::min({requests * (most_drafts_ + 2), 2 * requests + draft_rows_, arena_.limits().query_rows});
}

attn::StepShape GpuDrafts::shape(attn::Mode mode, int32_t requests, int32_t rows) const {
  return {.mode = mode, .captured = requests, .query_rows = rows, .table = runner_.table_view()};
}

// Runs it now, or puts it into a graph. Attention has the last row of each request alone, as in a decode step.
void GpuDrafts::record_extend(int32_t requests, int32_t rows) {
  const attn::StepShape last_rows = shape(attn::Mode::decode, requests, requests);
  const attn::StepInputs& inputs = inputs_.inputs();
  walk(requests);
  attn::write_metadata(last_rows, inputs, arena_, exec_);
  enter(rows);
  keep();
  forward_.extend({.shape = last_rows, .inputs = inputs, .arena = arena_, .store = store_, .exec = exec_}, rows);
  pick(forward_.next_states(), inputs, requests, of<model::PickedDraft>(first_picked_));
}

// Behind an extend, whose tokens and states enter. Those of its requests for which there are passes are its first.
void GpuDrafts::record_passes(int32_t requests) {
  attn::StepInputs inputs = inputs_.inputs();
  inputs.live = inputs.query_rows = of<int32_t>(passing_);
  inputs.input_ids = of<int32_t>(pass_tokens_);
  attn::StepShape step = shape(attn::Mode::draft, requests, requests);
  attn::write_metadata(step, inputs, arena_, exec_);
  model::cuda::lay_out({.live = inputs.live,
                        .rows = inputs.rows,
                        .lengths = inputs.lengths,
                        .table = step.table,
                        .passes = most_passes_,
                        .captured = requests,
                        .positions = of<int32_t>(pass_positions_),
                        .slots = of<TokenSlot>(pass_slots_),
                        .all_rows = of<int32_t>(all_rows_)},
                       exec_);
  forward_.make_angles(of<int32_t>(pass_positions_), of<int32_t>(all_rows_), exec_);
  for (int32_t i = 0; i < most_passes_; ++i) {
    const int64_t first_row = int64_t{i} * requests;
    step.draft_step = i;
    inputs.positions = of<int32_t>(pass_positions_) + first_row;
    inputs.slot_mapping = of<TokenSlot>(pass_slots_) + first_row;
    forward_.pass({.shape = step, .inputs = inputs, .arena = arena_, .store = store_, .exec = exec_}, first_row);
    pick(forward_.passed_states(), inputs, requests, of<model::PickedDraft>(passed_) + int64_t{i} * running_);
  }
}

void GpuDrafts::walk(int32_t requests) {
  model::cuda::walk({.step = &step(),
                     .shares = of<model::WalkedShare>(walked_shares_),
                     .captured = requests,
                     .drawn = drawn_,
                     .ids = runner_.inputs().input_ids,
                     .table = runner_.table_view(),
                     .live = &inputs_.live(),
                     .passing = of<int32_t>(passing_),
                     .query_rows = &inputs_.query_rows(),
                     .number = &inputs_.number(),
                     .rows = inputs_.rows(),
                     .lengths = inputs_.lengths(),
                     .wanted_rows = inputs_.wanted_rows(),
                     .kept_rows = of<int32_t>(kept_rows_),
                     .input_ids = inputs_.input_ids(),
                     .positions = inputs_.positions(),
                     .slots = inputs_.slot_mapping(),
                     .state_rows = of<int32_t>(state_rows_)},
                    exec_);
}

void GpuDrafts::enter(int64_t rows) {
  model::cuda::enter_states({.state_rows = of<int32_t>(state_rows_),
                             .features = runner_.features(),
                             .kept = kept(),
                             .out = {forward_.states().data, rows, width_, width_},
                             .live_rows = inputs_.inputs().query_rows},
                            exec_);
}

void GpuDrafts::keep() {
  const attn::StepInputs step = runner_.inputs();
  model::cuda::keep_features({.features = runner_.features(),
                              .slots = step.slot_mapping,
                              .slot_count = step.query_rows,
                              .page_size = page_size_,
                              .kept_rows = of<int32_t>(kept_rows_),
                              .rows = inputs_.inputs().rows,
                              .live = inputs_.inputs().live,
                              .first_page = running_ + 1,
                              .kept = kept()},
                             exec_);
}

// Tokens and states of the next pass.
void GpuDrafts::pick(Rows<const float> states, const attn::StepInputs& inputs, int32_t requests,
                     model::PickedDraft* picked) {
  Rows<const float> logits = forward_.logits();
  logits.rows = requests;
  model::cuda::pick({.logits = logits,
                     .token_ids = head_.ids_on_device().data(),
                     .states = states,
                     .states_out = forward_.states(),
                     .tokens = of<int32_t>(pass_tokens_),
                     .number = inputs.number,
                     .picked = picked,
                     .live = inputs.live},
                    exec_);
}

// --- behind a step

void GpuDrafts::follow(const Batch& batch) {
  begin_step();
  for (const bool passes : {true, false})
    for (const Share& share : batch.shares)
      if (share.passes == passes) add_share(share);
  if (step().live == 0) {  // features of full pages are kept all the same
    walk(1);
    keep();
    return;
  }
  launch_extend();
  if (step().passing == 0) return;
  pass_graphs_.replay(exec_, step().passing);
  for (int32_t b = 0; b < step().passing; ++b) passed_at_[of<model::WalkedShare>(walked_shares_)[b].row.value] = b;
}

// When the first drafts of the step before are there, what was said of it has been read.
void GpuDrafts::begin_step() {
  read_first();
  if (is_unread_) exec_.wait();
  is_unread_ = true;
  std::ranges::fill(passed_at_, -1);
  step() = {.live = 0, .passing = 0, .rows = 0, .number = ++number_};
}

// One that draws its last token may have no page for it, and no slots: it ends.
void GpuDrafts::add_share(const Share& share) {
  const auto room = static_cast<int32_t>(table_.pages(share.row).size()) * page_size_.tokens();
  const int32_t begin = share.position + (share.drafted ? 1 : 0);
  const int32_t most_end = std::min(share.end() + (share.draws ? 1 : 0), room);
  if (begin >= most_end) return;
  check(!share.branches, "trees of drafts are verified on a CPU");
  const bool has_room = most_end == share.end() + 1 && most_end + most_passes_ <= std::min(room, context_);
  check(!share.passes || has_room, "request ", share.id, " has pages for ", room, " tokens, and passes behind ",
        share.end(), " of them");
  check(step().rows + most_end - begin <= arena_.limits().query_rows, "a draft step of more than ", step().rows,
        " rows");
  of<model::WalkedShare>(walked_shares_)[step().live++] = {.row = share.row,
                                                           .position = share.position,
                                                           .first_row = share.first_row,
                                                           .text_end = share.text_end(),
                                                           .drafts = share.drafts,
                                                           .drawn = share.draws ? share.drawn.begin : -1,
                                                           .begin = begin,
                                                           .most_end = most_end,
                                                           .first_slot = step().rows,
                                                           .state_before = state_before(share),
                                                           .unused = {}};
  step().rows += most_end - begin;
  step().passing += share.passes;
}

void GpuDrafts::launch_extend() {
  const int32_t live = step().live, rows = step().rows;
  const auto& [requests, graphs] = *extend_graphs_.lower_bound(live);
  if (rows <= most_recorded_rows(requests))
    graphs.replay(exec_, rows);
  else
    record_extend(requests, rows);
  for (int32_t b = 0; b < live; ++b) unread_.push_back(of<model::WalkedShare>(walked_shares_)[b].row);
  is_unread_ = false;
}

// A kept row: of the token before a share's first row. A request begins at the beginning of a page.
int32_t GpuDrafts::state_before(const Share& share) const {
  if (share.position == 0) return 0;
  if (share.position % page_size_.tokens() != 0) return share.row.value;
  return kept_row(page_size_.page_of(table_.slot(share.row, share.position - 1)));
}

// --- what the head says

DraftToken GpuDrafts::first(RequestRow row) const {
  read_first();
  return first_[row.value];
}

void GpuDrafts::read_first() const {
  for (size_t i = 0; i < unread_.size(); ++i)
    first_[unread_[i].value] = wait_for(of<model::PickedDraft>(first_picked_)[i]);
  unread_.clear();
}

// Spins. Throws what a fault of the device left behind.
DraftToken GpuDrafts::wait_for(const model::PickedDraft& picked) const {
  constexpr std::chrono::seconds kPatience{1};
  const auto word = [&](const void* at) {
    auto* const bits = const_cast<uint64_t*>(static_cast<const uint64_t*>(at));
    return std::atomic_ref(*bits).load(std::memory_order_acquire);
  };
  const auto is_there = [&](uint64_t bits) { return static_cast<uint32_t>(bits >> 32) == number_; };
  uint64_t token, hit;
  Clock::time_point start = Clock::now();
  while (!is_there(token = word(&picked.token)) || !is_there(hit = word(&picked.hit)))
    if (Clock::now() - start > kPatience) {
      exec_.wait();
      check(is_there(word(&picked.token)), "drafts of step ", number_, " have not come");
      start = Clock::now();
    }
  return {.token = static_cast<int32_t>(token), .hit = std::bit_cast<float>(static_cast<uint32_t>(hit))};
}

// All passes are waited for, since they end before the next step whoever wants them; and what is there costs nothing,
// so no path is too unlikely.
int32_t GpuDrafts::draft(std::span<const DraftsWanted> wanted) {
  int32_t passes = 0;
  for (const DraftsWanted& each : wanted) {
    if (each.most == 0) continue;
    each.drafts->push_back(first(each.row));
    const int32_t at = passed_at_[each.row.value];
    if (at < 0) continue;
    passes = most_passes_;
    for (int32_t pass = 0; pass < passes; ++pass) {
      const DraftToken draft = wait_for(of<model::PickedDraft>(passed_)[int64_t{pass} * running_ + at]);
      if (std::ssize(*each.drafts) < each.most) each.drafts->push_back(draft);
    }
  }
  return passes;
}

}  // namespace quire::engine
