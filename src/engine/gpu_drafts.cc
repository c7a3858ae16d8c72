#include "engine/gpu_drafts.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <numeric>

#include "attn/write_metadata.h"
#include "base/check.h"
#include "base/device_array.h"
#include "base/device_wait.h"
#include "engine/growing_tree.h"
#include "model/draft_branches.h"

namespace quire::engine {
namespace {

attn::Limits gpu_draft_limits(const model::EagleSpec& spec, const SchedulerLimits& limits, const Exec& exec) {
  const int32_t branches = limits.running * limits.topk;
  const int32_t in_passes = branches * std::max(1, limits.deepest_draft() - 1);
  return model::draft_attention_limits(spec, {.batch = limits.running,
                                              .context = limits.context,
                                              .page_size = limits.page_size,
                                              .topk = limits.topk,
                                              .draft_steps = limits.deepest_draft(),
                                              .threads = exec.threads(),
                                              .query_rows = std::max(limits.rows() + limits.running, in_passes),
                                              .wanted_rows = branches,
                                              .device = Device::cuda});
}

// Slots of branches lie behind the pool's.
int32_t branch_pages(const SchedulerLimits& limits) {
  const int32_t slots = limits.verifies_trees() ? limits.running * limits.topk * limits.deepest_draft() : 0;
  return limits.page_size.pages_for(slots);
}

size_t rows_of_floats(int64_t rows, int64_t width) { return static_cast<size_t>(rows * width) * sizeof(float); }
size_t ints(int64_t count) { return static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(int32_t); }
size_t floats(int64_t count) { return static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(float); }
// Numbers of passes that there are graphs of: all small ones.
std::vector<int32_t> recorded_passes(int32_t most) {
  std::vector<int32_t> counts;
  for (int32_t count = 1; count < most; count += std::max(1, count / 4)) counts.push_back(count);
  if (most > 0) counts.push_back(most);
  return counts;
}
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
      topk_(limits.topk),
      steps_(limits.deepest_draft()),
      most_passes_(std::max(0, steps_ - 1)),
      context_(limits.context),
      most_drafts_(limits.drafts),
      draft_rows_(limits.draft_rows()),
      page_size_(limits.page_size),
      width_(head.spec().width),
      store_(model::draft_kv_layout(head.spec(), pages_ + branch_pages(limits), limits.page_size, kv_type),
             Place::device),
      arena_(gpu_draft_limits(head.spec(), limits, exec), Place::device),
      forward_(head, arena_.limits(), kv_type, deterministic),
      walked_step_(sizeof(model::WalkedStep), Place::pinned),
      walked_shares_(static_cast<size_t>(running_) * sizeof(model::WalkedShare), Place::pinned),
      follows_(ints(limits.drawn_rows()), Place::pinned),
      inputs_(arena_.limits(), Place::device),
      passing_(ints(1), Place::device),
      pass_rows_(ints(1), Place::device),
      state_rows_(ints(arena_.limits().query_rows), Place::device),
      kept_rows_(ints(running_), Place::device),
      kept_(rows_of_floats(running_ + 1 + pages_, width_), Place::device),
      paths_(static_cast<size_t>(running_) * sizeof(model::WalkedPath), Place::device),
      path_rows_(ints(int64_t{running_} * (1 + model::kMostTreeDrafts)), Place::device),
      pass_positions_(ints(int64_t{most_passes_} * running_ * topk_), Place::device),
      pass_slots_(ints(int64_t{most_passes_} * running_ * topk_), Place::device),
      all_rows_(ints(1), Place::device),
      pass_tokens_(ints(int64_t{running_} * topk_), Place::device),
      pass_paths_(floats(int64_t{running_} * topk_), Place::device),
      said_(ints(int64_t{running_} * topk_ * topk_), Place::device),
      said_hits_(floats(int64_t{running_} * topk_ * topk_), Place::device),
      parents_(ints(int64_t{running_} * topk_), Place::device),
      first_picked_(picks(int64_t{running_} * topk_), Place::pinned),
      passed_(picks(int64_t{most_passes_} * running_ * topk_ * topk_), Place::pinned),
      followed_(picks(int64_t{most_passes_} * running_ * topk_), Place::pinned),
      whole_(pages_),
      first_(int64_t{running_ + 1} * topk_),
      passed_at_(running_ + 1, -1) {
  const Buffer zeros(rows_of_floats(1, width_), Place::pinned);
  std::fill_n(of<float>(zeros), width_, 0.0f);
  for (const Buffer* pinned : {&walked_step_, &walked_shares_, &follows_, &first_picked_, &passed_, &followed_})
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
  for (const int32_t passes : recorded_passes(most_passes_))
    pass_graphs_[passes].capture(exec_, sizes, [&](int requests) { record_passes(requests, passes); });
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
  if (topk_ > 1) keep_path(requests);
  forward_.extend({.shape = last_rows, .inputs = inputs, .arena = arena_, .store = store_, .exec = exec_}, rows);
  pick_first(requests);
}

// Behind an extend, whose tokens and states enter. Those of its requests for which there are passes are its first.
void GpuDrafts::record_passes(int32_t requests, int32_t passes) {
  const int32_t rows = requests * topk_;
  attn::StepInputs inputs = inputs_.inputs();
  inputs.live = of<int32_t>(passing_);
  inputs.query_rows = of<int32_t>(pass_rows_);
  inputs.input_ids = of<int32_t>(pass_tokens_);
  attn::StepShape step = shape(topk_ > 1 ? attn::Mode::draft_tree : attn::Mode::draft, requests, rows);
  lay_out(requests, passes);
  attn::write_metadata(step, inputs, arena_, exec_);
  forward_.make_angles(of<int32_t>(pass_positions_), of<int32_t>(all_rows_), exec_);
  for (int32_t i = 0; i < passes; ++i) {
    const int64_t first_row = int64_t{i} * rows;
    step.draft_step = i;
    inputs.positions = of<int32_t>(pass_positions_) + first_row;
    inputs.slot_mapping = of<TokenSlot>(pass_slots_) + first_row;
    forward_.pass({.shape = step, .inputs = inputs, .arena = arena_, .store = store_, .exec = exec_}, first_row);
    if (topk_ > 1)
      pick_branches(step, inputs, i);
    else
      pick_next(inputs, requests, i);
    if (topk_ > 1 && i + 1 < passes) follow_best(step, inputs, i);
  }
}

void GpuDrafts::walk(int32_t requests) {
  model::cuda::walk({.step = &step(),
                     .shares = of<model::WalkedShare>(walked_shares_),
                     .captured = requests,
                     .drawn = drawn_,
                     .follows = of<int32_t>(follows_),
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
                     .state_rows = of<int32_t>(state_rows_),
                     .paths = of<model::WalkedPath>(paths_),
                     .path_rows = of<int32_t>(path_rows_)},
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

void GpuDrafts::keep_path(int32_t requests) {
  const kv::KvStore& target = runner_.store();
  const int32_t layers = target.layout().layers;
  const kv::LayerKv first = target.layer(0);
  model::cuda::keep_path({.live = inputs_.inputs().live,
                          .captured = requests,
                          .rows = inputs_.inputs().rows,
                          .paths = of<model::WalkedPath>(paths_),
                          .path_rows = of<int32_t>(path_rows_),
                          .table = runner_.table_view(),
                          .first_layer = first,
                          .layer_bytes = layers > 1 ? target.layer(1).keys - first.keys : 0,
                          .layers = layers,
                          .features = runner_.features(),
                          .first_page = running_ + 1,
                          .kept = kept()},
                         exec_);
}

void GpuDrafts::lay_out(int32_t requests, int32_t passes) {
  const attn::StepInputs& inputs = inputs_.inputs();
  model::cuda::lay_out({.live = of<int32_t>(passing_),
                        .rows = inputs.rows,
                        .lengths = inputs.lengths,
                        .table = runner_.table_view(),
                        .passes = passes,
                        .captured = requests,
                        .topk = topk_,
                        .steps = steps_,
                        .first_branch_slot = {pages_ * page_size_.tokens()},
                        .positions = of<int32_t>(pass_positions_),
                        .slots = of<TokenSlot>(pass_slots_),
                        .draft_slots = inputs_.draft_slots(),
                        .all_rows = of<int32_t>(all_rows_),
                        .pass_rows = of<int32_t>(pass_rows_)},
                       exec_);
}

// What the newest tokens' slots say: tokens and states of the first pass.
void GpuDrafts::pick_first(int32_t requests) {
  Rows<const float> logits = forward_.logits();
  logits.rows = requests;
  model::cuda::pick({.logits = logits,
                     .token_ids = head_.ids_on_device().data(),
                     .topk = topk_,
                     .states = forward_.next_states(),
                     .states_out = forward_.states(),
                     .tokens = of<int32_t>(pass_tokens_),
                     .hits = of<float>(pass_paths_),
                     .number = inputs_.inputs().number,
                     .picked = of<model::PickedDraft>(first_picked_),
                     .live = inputs_.inputs().live},
                    exec_);
}

// Of a chain: tokens and states of the next pass.
void GpuDrafts::pick_next(const attn::StepInputs& inputs, int32_t requests, int32_t pass) {
  Rows<const float> logits = forward_.logits();
  logits.rows = requests;
  model::cuda::pick({.logits = logits,
                     .token_ids = head_.ids_on_device().data(),
                     .topk = 1,
                     .states = forward_.passed_states(),
                     .states_out = forward_.states(),
                     .tokens = of<int32_t>(pass_tokens_),
                     .hits = of<float>(pass_paths_),
                     .number = inputs.number,
                     .picked = of<model::PickedDraft>(passed_) + int64_t{pass} * running_,
                     .live = inputs.query_rows},
                    exec_);
}

// Of trees: what is said behind each branch.
void GpuDrafts::pick_branches(const attn::StepShape& shape, const attn::StepInputs& inputs, int32_t pass) {
  Rows<const float> logits = forward_.logits();
  logits.rows = shape.query_rows;
  model::cuda::pick({.logits = logits,
                     .token_ids = head_.ids_on_device().data(),
                     .topk = topk_,
                     .states = forward_.passed_states(),
                     .states_out = {nullptr, 0, 0, 0},
                     .tokens = of<int32_t>(said_),
                     .hits = of<float>(said_hits_),
                     .number = inputs.number,
                     .picked = of<model::PickedDraft>(passed_) + int64_t{pass} * running_ * topk_ * topk_,
                     .live = inputs.query_rows},
                    exec_);
}

// And the branches of the next pass.
void GpuDrafts::follow_best(const attn::StepShape& shape, const attn::StepInputs& inputs, int32_t pass) {
  model::cuda::grow({.live = inputs.live,
                     .captured = shape.captured,
                     .topk = topk_,
                     .said = of<int32_t>(said_),
                     .hits = of<float>(said_hits_),
                     .paths = of<float>(pass_paths_),
                     .states = forward_.passed_states(),
                     .states_out = forward_.states(),
                     .tokens = of<int32_t>(pass_tokens_),
                     .parents = of<int32_t>(parents_),
                     .number = inputs.number,
                     .followed = of<model::PickedDraft>(followed_) + int64_t{pass} * running_ * topk_},
                    exec_);
  attn::follow_parents(shape, inputs, arena_, pass, of<int32_t>(parents_), exec_);
}

// --- behind a step

void GpuDrafts::follow(const Batch& batch) {
  for (const Share& share : batch.shares) mark_pages(share, share.end(), false);
  launch(batch);
  for (const Share& share : batch.shares)
    if (share.followed) mark_pages(share, share.prefills ? end_of_full_pages(share) : share.end(), true);
}

void GpuDrafts::launch(const Batch& batch) {
  // A tree is walked whoever made it: what came of it has to be moved.
  const auto takes_part = [](const Share& share) { return share.followed || share.branches; };
  if (std::ranges::none_of(batch.shares, takes_part)) return;
  begin_step();
  rows_ = batch.rows();
  for (const bool passes : {true, false})
    for (const Share& share : batch.shares)
      if ((share.passes > 0) == passes && takes_part(share)) add_share(batch, share);
  if (step().live == 0) {  // features of full pages are kept all the same
    walk(1);
    keep();
    return;
  }
  launch_extend();
  if (step().passing == 0) return;
  const auto& [passes, graphs] = *pass_graphs_.lower_bound(passes_);
  passes_ = passes;
  graphs.replay(exec_, step().passing);
  for (int32_t b = 0; b < step().passing; ++b) passed_at_[of<model::WalkedShare>(walked_shares_)[b].row.value] = b;
}

bool GpuDrafts::has_slots(std::span<const PageId> pages) const {
  return std::ranges::all_of(pages, [&](PageId page) { return whole_[page.value] != 0; });
}

// Who is followed is so from the beginning of a page on, and never again once it was left: what such a request was the
// last to write to is whole when it is full. A page of a prompt may be others' as well, full and not whole, and is not
// before all of it is on its way.
void GpuDrafts::mark_pages(const Share& share, int32_t end, bool whole) {
  const std::span<const PageId> pages = table_.pages(share.row);
  const int32_t tokens = page_size_.tokens();
  for (int32_t i = share.position / tokens; i < page_size_.pages_for(end); ++i) whole_[pages[i].value] = whole;
}

int32_t GpuDrafts::end_of_full_pages(const Share& share) const {
  return share.end() / page_size_.tokens() * page_size_.tokens();
}

// When the first drafts of the step before are there, what was said of it has been read.
void GpuDrafts::begin_step() {
  read_first();
  if (is_unread_) cuda::wait_for_stream(*exec_.stream());
  is_unread_ = true;
  std::ranges::fill(passed_at_, -1);
  passes_ = 0;
  step() = {.live = 0, .passing = 0, .rows = 0, .number = ++number_};
}

// One that draws its last token may have no page for it, and no slots: it ends.
void GpuDrafts::add_share(const Batch& batch, const Share& share) {
  const auto room = static_cast<int32_t>(table_.pages(share.row).size()) * page_size_.tokens();
  const int32_t begin = share.position + (share.drafted ? 1 : 0);
  const int32_t may_come = share.branches ? add_tree(batch, share) : share.drafts;
  const int32_t text_end = share.text_end() + (share.draws ? 1 : 0), most_end = std::min(text_end + may_come, room);
  if (begin >= most_end) return;
  const int32_t own_passes = topk_ > 1 ? 0 : most_passes_;  // that may lie in its pages
  const bool has_room = most_end == text_end + may_come && most_end + own_passes <= std::min(room, context_);
  check(share.passes == 0 || (share.draws && has_room), "request ", share.id, " has pages for ", room,
        " tokens, and passes behind ", share.end(), " of them");
  check(share.passes <= most_passes_ && (step().passing == 0 || share.passes == 0 || share.passes == passes_),
        "request ", share.id, " has ", share.passes, " passes, others ", passes_, " and the most are ", most_passes_);
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
                                                           .branches = share.branches,
                                                           .unused = 0};
  step().rows += most_end - begin;
  step().passing += share.passes > 0;
  passes_ = std::max(passes_, share.passes);
}

// How many drafts of a tree may come at most.
int32_t GpuDrafts::add_tree(const Batch& batch, const Share& share) {
  static_assert(SchedulerLimits::kMostDraftRows <= model::kMostTreeDrafts);
  check(topk_ > 1, "request ", share.id, " has a tree of drafts, and nothing was recorded for trees");
  std::vector<int32_t> depths(share.drawn.count);
  for (int32_t i = 1; i < share.drawn.count; ++i) {
    const int32_t follows = batch.drawn[share.drawn.begin + i].follows;
    of<int32_t>(follows_)[share.drawn.begin + i] = follows;
    depths[i] = depths[follows] + 1;
  }
  return *std::ranges::max_element(depths);
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

std::span<const DraftToken> GpuDrafts::first_of(RequestRow row) const {
  read_first();
  return std::span(first_).subspan(int64_t{row.value} * topk_, topk_);
}

void GpuDrafts::read_first() const {
  for (size_t i = 0; i < unread_.size(); ++i)
    for (int32_t k = 0; k < topk_; ++k)
      first_[int64_t{unread_[i].value} * topk_ + k] =
          wait_for(of<model::PickedDraft>(first_picked_)[static_cast<int64_t>(i) * topk_ + k]);
  unread_.clear();
}

// Throws what a fault of the device left behind.
DraftToken GpuDrafts::wait_for(const model::PickedDraft& picked) const {
  const auto word = [&](const void* at) {
    auto* const bits = const_cast<uint64_t*>(static_cast<const uint64_t*>(at));
    return std::atomic_ref(*bits).load(std::memory_order_acquire);
  };
  const auto is_there = [&](uint64_t bits) { return static_cast<uint32_t>(bits >> 32) == number_; };
  uint64_t token, hit;
  const auto are_there = [&] { return is_there(token = word(&picked.token)) && is_there(hit = word(&picked.hit)); };
  check(cuda::wait_for_device(are_there, *exec_.stream(), cuda::patience_for(rows_)), "drafts of step ", number_,
        " have not come");
  return {.token = static_cast<int32_t>(token), .hit = std::bit_cast<float>(static_cast<uint32_t>(hit))};
}

// All passes are waited for, since they end before the next step whoever wants them; and what is there costs nothing,
// so no path is too unlikely.
int32_t GpuDrafts::draft(std::span<const DraftsWanted> wanted) {
  int32_t passes = 0;
  for (const DraftsWanted& each : wanted) {
    if (each.most == 0) continue;
    const int32_t at = passed_at_[each.row.value];
    if (at >= 0) passes = passes_;
    if (topk_ > 1)
      draft_tree(each, at);
    else
      draft_chain(each, at);
  }
  return passes;
}

void GpuDrafts::draft_chain(const DraftsWanted& wanted, int32_t at) const {
  wanted.drafts->push_back(first(wanted.row));
  for (int32_t pass = 0; at >= 0 && pass < passes_; ++pass) {
    const DraftToken draft = wait_for(of<model::PickedDraft>(passed_)[int64_t{pass} * running_ + at]);
    if (std::ssize(*wanted.drafts) < wanted.most) wanted.drafts->push_back(draft);
  }
}

// Of what the device has followed, the best by what is known of the head.
void GpuDrafts::draft_tree(const DraftsWanted& wanted, int32_t at) const {
  GrowingTree tree({.topk = topk_, .depth = steps_, .most = wanted.most}, *wanted.record);
  tree.add_level(first_of(wanted.row));
  std::vector<int32_t> followed(topk_);
  std::iota(followed.begin(), followed.end(), 0);  // all of the first level
  std::vector<DraftToken> said(int64_t{topk_} * topk_);
  for (int32_t pass = 0; at >= 0 && pass < passes_; ++pass) {
    const int64_t first_branch = (int64_t{pass} * running_ + at) * topk_;
    tree.follow(followed);
    for (size_t i = 0; i < said.size(); ++i)
      said[i] = wait_for(of<model::PickedDraft>(passed_)[first_branch * topk_ + static_cast<int64_t>(i)]);
    tree.add_level(said);
    for (int32_t branch = 0; pass + 1 < passes_ && branch < topk_; ++branch)
      followed[branch] = wait_for(of<model::PickedDraft>(followed_)[first_branch + branch]).token;
  }
  tree.take_best(*wanted.drafts);
}

}  // namespace quire::engine
