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

constexpr int32_t kDraftInputCopies = 1;  // what was sent has been read when the next is filled: drafts are waited for

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
                     const kv::RequestTable& table, Runner& runner, bool deterministic, Exec& exec)
    : head_(head),
      table_(table),
      runner_(runner),
      exec_(exec),
      running_(limits.running),
      pages_(limits.pages + 1),
      most_passes_(std::max(0, limits.deepest_draft() - 1)),
      page_size_(limits.page_size),
      width_(head.spec().width),
      store_(model::draft_kv_layout(head.spec(), pages_, limits.page_size, kv_type), Place::device),
      arena_(gpu_draft_limits(head.spec(), limits, exec), Place::device),
      extend_upload_(arena_.limits(), kDraftInputCopies, exec),
      pass_upload_(arena_.limits(), kDraftInputCopies, exec),
      forward_(head, arena_.limits(), kv_type, deterministic),
      row_stride_((std::max(arena_.limits().query_rows, running_) + 3) / 4 * 4),
      given_rows_(ints(kRowArrays * row_stride_), Place::pinned),
      fetched_rows_(ints(kRowArrays * row_stride_), Place::device),
      kept_(rows_of_floats(running_ + 1 + pages_, width_), Place::device),
      row_states_(rows_of_floats(running_ + 1, width_), Place::device),
      pass_positions_(ints(int64_t{most_passes_} * running_), Place::device),
      pass_slots_(ints(int64_t{most_passes_} * running_), Place::device),
      all_rows_(ints(1), Place::device),
      pass_tokens_(ints(running_), Place::device),
      first_picked_(picks(running_), Place::pinned),
      passed_(picks(int64_t{most_passes_} * running_), Place::pinned),
      first_(running_ + 1) {
  const Buffer zeros(rows_of_floats(1, width_), Place::pinned);
  std::fill_n(of<float>(zeros), width_, 0.0f);
  for (const Buffer* numbered : {&first_picked_, &passed_}) std::ranges::fill(numbered->bytes(), std::byte{0});
  exec_.stream()->copy(kept_.data(), zeros.data(), zeros.size());
  exec_.wait();
  capture();
}

// --- graphs

// Rows of a round are those that were accepted, with the newest: from one of each request to all drafts of each.
void GpuDrafts::capture() {
  for (const int requests : padded_sizes(running_, Device::cuda)) {
    std::vector<int> rows, passes;
    for (int count = requests; count < most_recorded_rows(requests); count *= 2) rows.push_back(count);
    rows.push_back(most_recorded_rows(requests));
    extend_graphs_[requests].capture(exec_, rows, [&](int count) { record_extend(requests, count); });
    for (int count = 1; count <= most_passes_; ++count) passes.push_back(count);
    if (!passes.empty())
      pass_graphs_[requests].capture(exec_, passes, [&](int count) { record_passes(requests, count); });
  }
}

int32_t GpuDrafts::most_recorded_rows(int32_t requests) const {
  return std::min(requests * (most_passes_ + 2), arena_.limits().query_rows);
}

attn::StepShape GpuDrafts::shape(attn::Mode mode, int32_t requests, int32_t rows) const {
  return {.mode = mode, .captured = requests, .query_rows = rows, .table = runner_.table_view()};
}

// Runs it now, or puts it into a graph. Attention has the last row of each request alone, as in a decode step.
void GpuDrafts::record_extend(int32_t requests, int32_t rows) {
  const attn::StepShape last_rows = shape(attn::Mode::decode, requests, requests);
  attn::StepInputs inputs = extend_upload_.inputs();
  attn::write_metadata(last_rows, inputs, arena_, exec_);
  fetch_rows(rows);
  inputs.input_ids = fetched(input_ids);
  inputs.positions = fetched(positions);
  inputs.slot_mapping = reinterpret_cast<const TokenSlot*>(fetched(slots));
  enter(runner_.features(), fetched(state_rows), inputs, rows);
  keep();
  forward_.extend({.shape = last_rows, .inputs = inputs, .arena = arena_, .store = store_, .exec = exec_}, rows);
  pick(forward_.next_states(), row_states(), inputs, requests, inputs.rows, of<model::PickedDraft>(first_picked_));
}

void GpuDrafts::record_passes(int32_t requests, int32_t passes) {
  attn::StepInputs inputs = pass_upload_.inputs();
  attn::StepShape step = shape(attn::Mode::draft, requests, requests);
  attn::write_metadata(step, inputs, arena_, exec_);
  model::cuda::lay_out({.live = inputs.live,
                        .rows = inputs.rows,
                        .lengths = inputs.lengths,
                        .table = step.table,
                        .passes = passes,
                        .captured = requests,
                        .positions = of<int32_t>(pass_positions_),
                        .slots = of<TokenSlot>(pass_slots_),
                        .all_rows = of<int32_t>(all_rows_)},
                       exec_);
  forward_.make_angles(of<int32_t>(pass_positions_), of<int32_t>(all_rows_), exec_);
  enter(row_states(), reinterpret_cast<const int32_t*>(inputs.rows), inputs, requests);
  for (int32_t i = 0; i < passes; ++i) {
    const int64_t first_row = int64_t{i} * requests;
    step.draft_step = i;
    inputs.positions = of<int32_t>(pass_positions_) + first_row;
    inputs.slot_mapping = of<TokenSlot>(pass_slots_) + first_row;
    if (i > 0) inputs.input_ids = of<int32_t>(pass_tokens_);
    forward_.pass({.shape = step, .inputs = inputs, .arena = arena_, .store = store_, .exec = exec_}, first_row);
    pick(forward_.passed_states(), forward_.states(), inputs, requests, nullptr,
         of<model::PickedDraft>(passed_) + int64_t{i} * running_);
  }
}

void GpuDrafts::fetch_rows(int32_t rows) {
  model::cuda::fetch_rows({.from = of<int32_t>(given_rows_),
                           .to = of<int32_t>(fetched_rows_),
                           .stride = row_stride_,
                           .arrays = kRowArrays,
                           .count = {1, running_, running_, rows, rows, rows, rows}},
                          exec_);
}

void GpuDrafts::enter(Rows<const float> from, const int32_t* rows_of, const attn::StepInputs& inputs, int64_t rows) {
  model::cuda::enter_states({.state_rows = rows_of,
                             .features = from,
                             .kept = kept(),
                             .out = {forward_.states().data, rows, width_, width_},
                             .live_rows = inputs.query_rows},
                            exec_);
}

void GpuDrafts::keep() {
  const attn::StepInputs step = runner_.inputs();
  model::cuda::keep_features({.features = runner_.features(),
                              .slots = step.slot_mapping,
                              .slot_count = step.query_rows,
                              .page_size = page_size_,
                              .kept_rows = fetched(kept_from),
                              .rows = reinterpret_cast<const RequestRow*>(fetched(kept_to)),
                              .live = fetched(numbers),
                              .first_page = running_ + 1,
                              .kept = kept()},
                             exec_);
}

void GpuDrafts::pick(Rows<const float> states, Rows<float> states_out, const attn::StepInputs& inputs, int32_t requests,
                     const RequestRow* rows_out, model::PickedDraft* picked) {
  Rows<const float> logits = forward_.logits();
  logits.rows = requests;
  model::cuda::pick({.logits = logits,
                     .token_ids = head_.ids_on_device().data(),
                     .states = states,
                     .states_out = states_out,
                     .rows_out = rows_out,
                     .tokens = of<int32_t>(pass_tokens_),
                     .number = inputs.number,
                     .picked = picked,
                     .live = inputs.live},
                    exec_);
}

// --- after a step

void GpuDrafts::extend(const Batch& batch, const StepResults& results) {
  read_first();  // so that what was filled for the extend before has been read
  const attn::StepInputBuffers& inputs = extend_upload_.next();
  int32_t& kept_count = *given(numbers);
  inputs.live() = inputs.query_rows() = inputs.wanted_count() = inputs.logits_count() = kept_count = 0;
  for (const Share& share : batch.shares) {
    const auto room = static_cast<int32_t>(table_.pages(share.row).size()) * page_size_.tokens();
    const DraftSlots of_share = draft_slots(share, results, room);
    add_slots(batch, share, of_share, inputs);
    if (of_share.committed <= share.position) continue;
    given(kept_from)[kept_count] = share.first_row + of_share.committed - 1 - share.position;
    given(kept_to)[kept_count++] = share.row.value;
  }
  const int32_t live = inputs.live(), rows = inputs.query_rows();
  if (live == 0) {
    fetch_rows(0);
    keep();
    return exec_.wait();
  }
  const auto& [requests, graphs] = *extend_graphs_.lower_bound(live);
  const bool is_recorded = rows <= most_recorded_rows(requests);
  check_extend(inputs.inputs(), requests, is_recorded ? graphs.padded_size(rows) : rows);
  extend_number_ = extend_upload_.next_number();
  extend_upload_.send();
  if (is_recorded)
    graphs.replay(exec_, rows);
  else
    record_extend(requests, rows);
}

void GpuDrafts::check_extend(attn::StepInputs inputs, int32_t requests, int32_t rows) const {
  inputs.input_ids = given(input_ids);
  inputs.positions = given(positions);
  inputs.slot_mapping = reinterpret_cast<const TokenSlot*>(given(slots));
  attn::check_step(shape(attn::Mode::draft_extend, requests, rows), inputs, arena_.limits());
}

void GpuDrafts::add_slots(const Batch& batch, const Share& share, const DraftSlots& of_share,
                          const attn::StepInputBuffers& inputs) {
  if (of_share.begin >= of_share.end) return;
  for (int32_t slot = of_share.begin; slot < of_share.end; ++slot) {
    const int32_t i = inputs.query_rows()++, row = slot - share.position;
    check(i < arena_.limits().query_rows, "a draft step of more than ", i, " rows");
    const bool was_drawn = slot == of_share.committed && of_share.newest >= 0;
    given(input_ids)[i] = was_drawn ? of_share.newest : batch.token_ids[share.first_row + row];
    given(positions)[i] = slot;
    given(slots)[i] = table_.slot(share.row, slot).value;
    given(state_rows)[i] = row == 0 ? -1 - state_before(share) : share.first_row + row - 1;
  }
  const int32_t b = inputs.live()++;
  inputs.rows()[b] = share.row;
  inputs.lengths()[b] = {of_share.end};
  inputs.extend_lengths()[b] = {of_share.end - of_share.begin};
  inputs.wanted_rows()[b] = inputs.query_rows() - 1;
  inputs.wanted_count() = inputs.logits_count() = inputs.live();
  picked_rows_.push_back(share.row);
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
  for (size_t i = 0; i < picked_rows_.size(); ++i) {
    const model::PickedDraft picked = wait_for(of<model::PickedDraft>(first_picked_)[i], extend_number_);
    first_[picked_rows_[i].value] = {.token = picked.token, .hit = picked.hit};
  }
  picked_rows_.clear();
}

// Spins. Throws what a fault of the device left behind.
model::PickedDraft GpuDrafts::wait_for(const model::PickedDraft& picked, uint32_t number) const {
  constexpr std::chrono::seconds kPatience{1};
  const auto word = [&](const void* at) {
    auto* const bits = const_cast<uint64_t*>(static_cast<const uint64_t*>(at));
    return std::atomic_ref(*bits).load(std::memory_order_acquire);
  };
  const auto is_there = [&](uint64_t bits) { return static_cast<uint32_t>(bits >> 32) == number; };
  uint64_t token, hit;
  Clock::time_point start = Clock::now();
  while (!is_there(token = word(&picked.token)) || !is_there(hit = word(&picked.hit)))
    if (Clock::now() - start > kPatience) {
      exec_.wait();
      check(is_there(word(&picked.token)), "drafts of step ", number, " have not come");
      start = Clock::now();
    }
  return {.token = static_cast<int32_t>(token),
          .token_number = number,
          .hit = std::bit_cast<float>(static_cast<uint32_t>(hit)),
          .hit_number = number};
}

bool GpuDrafts::Chain::grows() const { return std::ssize(*of->drafts) < of->most && path >= of->least; }

void GpuDrafts::Chain::add(const DraftToken& draft) {
  of->drafts->push_back(draft);
  path *= static_cast<double>(of->record->hit(draft.hit));
}

bool GpuDrafts::has_room(const DraftsWanted& wanted, int32_t passes) const {
  const int64_t tokens = wanted.position + 1 + passes;
  const int64_t in_pages = std::ssize(table_.pages(wanted.row)) * page_size_.tokens();
  return tokens <= in_pages && wanted.position + 1 + arena_.limits().planes() <= arena_.limits().context;
}

int32_t GpuDrafts::draft(std::span<const DraftsWanted> wanted) {
  std::vector<Chain> chains;
  for (const DraftsWanted& each : wanted)
    if (each.most > 0) chains.emplace_back(Chain{&each}).add(first(each.row));
  int32_t passes = 0;
  for (const Chain& chain : chains)
    if (chain.grows()) passes = std::max(passes, chain.of->most - 1);
  std::vector<Chain*> growing;
  for (Chain& chain : chains)
    if (chain.grows() && has_room(*chain.of, passes)) growing.push_back(&chain);
  if (growing.empty()) return 0;
  run_passes({growing.data(), growing.size()}, passes);
  for (int32_t pass = 0; pass < passes; ++pass)
    for (size_t i = 0; i < growing.size(); ++i) {
      const model::PickedDraft& place = of<model::PickedDraft>(passed_)[int64_t{pass} * running_ + i];
      const model::PickedDraft picked = wait_for(place, pass_upload_.next_number() - 1);
      if (growing[i]->grows()) growing[i]->add({.token = picked.token, .hit = picked.hit});
    }
  return passes;
}

void GpuDrafts::run_passes(std::span<const Chain* const> chains, int32_t passes) {
  runner_.update_table();  // pages were taken for the drafts
  const attn::StepInputBuffers& inputs = pass_upload_.next();
  const auto live = static_cast<int32_t>(chains.size());
  inputs.live() = inputs.query_rows() = inputs.wanted_count() = inputs.logits_count() = live;
  for (int32_t b = 0; b < live; ++b) {
    const DraftsWanted& of_chain = *chains[b]->of;
    inputs.rows()[b] = of_chain.row;
    inputs.lengths()[b] = {of_chain.position + 1};
    inputs.input_ids()[b] = of_chain.drafts->back().token;
    inputs.positions()[b] = of_chain.position + 1;
    inputs.slot_mapping()[b] = table_.slot(of_chain.row, of_chain.position + 1);
    inputs.wanted_rows()[b] = b;
  }
  const auto& [requests, graphs] = *pass_graphs_.lower_bound(live);
  attn::check_step(shape(attn::Mode::draft, requests, requests), inputs.inputs(), arena_.limits());
  pass_upload_.send();
  graphs.replay(exec_, passes);
}

}  // namespace quire::engine
