#include "engine/eagle_drafts.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire::engine {
namespace {

// A row more for each request: the token that was drawn.
attn::Limits draft_limits(const model::EagleSpec& spec, const SchedulerLimits& limits, const Exec& exec) {
  return model::draft_attention_limits(spec, {.batch = limits.running,
                                              .context = limits.context,
                                              .page_size = limits.page_size,
                                              .threads = exec.threads(),
                                              .query_rows = limits.rows() + limits.running,
                                              .wanted_rows = limits.running});
}

size_t row_bytes(int64_t rows, int32_t width) { return static_cast<size_t>(rows * width) * sizeof(float); }

}  // namespace

EagleDrafts::EagleDrafts(const model::EagleHead& head, const SchedulerLimits& limits, Dtype kv_type,
                         const kv::RequestTable& table, Exec& exec)
    : table_(table),
      exec_(exec),
      page_size_(limits.page_size),
      width_(head.spec().width),
      token_ids_(head.token_ids()),
      store_(model::draft_kv_layout(head.spec(), limits.pages + 1, limits.page_size, kv_type)),
      arena_(draft_limits(head.spec(), limits, exec)),
      inputs_(arena_.limits()),
      forward_(head, arena_.limits(), kv_type),
      sampler_(head.spec().draft_vocabulary, exec),
      page_features_(row_bytes(limits.pages + 1, width_)),
      row_features_(row_bytes(limits.running + 1, width_)),
      row_states_(row_bytes(limits.running + 1, width_)),
      first_(limits.running + 1) {}

float* EagleDrafts::row_of(const Buffer& rows, int32_t index) const {
  return reinterpret_cast<float*>(rows.data()) + int64_t{index} * width_;
}

// --- after a step

void EagleDrafts::extend(const Batch& batch, const StepResults& results, Rows<const float> features) {
  begin_step();
  for (const Share& share : batch.shares) {
    const Slots slots = slots_of(share, results);
    const Rows<const float> own{features.row(share.first_row), share.count, features.dim, features.stride};
    add_slots(batch, share, slots, own);
    keep_features(share, slots, own);
  }
  run(attn::Mode::draft_extend);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    first_[wanted_[i].value] = guesses_[i];
    std::copy_n(forward_.next_states().row(static_cast<int64_t>(i)), width_, row_of(row_states_, wanted_[i].value));
  }
}

// The same count as Scheduler::settle_rows has. A token that was drawn and ends its request may have no page.
EagleDrafts::Slots EagleDrafts::slots_of(const Share& share, const StepResults& results) const {
  const int32_t begin = share.position + (share.drafted ? 1 : 0);
  if (!share.draws) return {.begin = begin, .end = share.end(), .committed = share.end()};
  int32_t drawn = 0, newest = -1;
  for (int32_t i = share.drawn.begin; i < share.drawn.begin + share.drawn.count; ++i)
    for (const ops::Sampled& sampled : results.drawn[i].tokens) {
      ++drawn;
      newest = sampled.token;
    }
  const int32_t committed = share.text_end() + drawn - 1;
  const auto room = static_cast<int32_t>(table_.pages(share.row).size()) * page_size_.tokens();
  return {.begin = begin, .end = std::min(committed + 1, room), .committed = committed, .newest = newest};
}

void EagleDrafts::add_slots(const Batch& batch, const Share& share, const Slots& slots, Rows<const float> features) {
  if (slots.begin >= slots.end) return;
  for (int32_t slot = slots.begin; slot < slots.end; ++slot) {
    const int32_t row = slot - share.position;
    const bool was_drawn = slot == slots.committed && slots.newest >= 0;
    add_row(share.row, slot, was_drawn ? slots.newest : batch.token_ids[share.first_row + row],
            row == 0 ? features_before(share) : features.row(row - 1));
  }
  end_request(share.row, slots.end, slots.end - slots.begin, share.draws && share.request->speculative);
}

// Of the token before its first row. A request begins at the beginning of a page.
const float* EagleDrafts::features_before(const Share& share) const {
  if (share.position == 0) return nullptr;
  if (share.position % page_size_.tokens() != 0) return row_of(row_features_, share.row.value);
  return row_of(page_features_, page_size_.page_of(table_.slot(share.row, share.position - 1)).value);
}

void EagleDrafts::keep_features(const Share& share, const Slots& slots, Rows<const float> features) {
  const int32_t tokens = page_size_.tokens();
  for (int32_t position = share.position; position < slots.committed; ++position)
    if ((position + 1) % tokens == 0)
      std::copy_n(features.row(position - share.position), width_,
                  row_of(page_features_, page_size_.page_of(table_.slot(share.row, position)).value));
  if (slots.committed > share.position)
    std::copy_n(features.row(slots.committed - 1 - share.position), width_, row_of(row_features_, share.row.value));
}

// --- drafts

int32_t EagleDrafts::draft(std::span<const DraftsWanted> wanted) {
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
      add_row(chain.of->row, slot, chain.of->drafts->back().token, chain.state);
      end_request(chain.of->row, slot + 1, 1, true);
    }
    run(attn::Mode::decode);
    for (size_t i = 0; i < chains.size(); ++i) {
      chains[i].add(guesses_[i]);
      chains[i].state = forward_.next_states().row(static_cast<int64_t>(i));
    }
  }
}

// --- one step of the head

void EagleDrafts::begin_step() {
  inputs_.live() = inputs_.query_rows() = inputs_.wanted_count() = inputs_.logits_count() = 0;
  wanted_.clear();
}

// state: null: zeros
void EagleDrafts::add_row(RequestRow row, int32_t position, int32_t token, const float* state) {
  const int32_t i = inputs_.query_rows()++;
  check(i < arena_.limits().query_rows, "a draft step of more than ", i, " rows");
  inputs_.input_ids()[i] = token;
  inputs_.positions()[i] = position;
  inputs_.slot_mapping()[i] = table_.slot(row, position);
  if (state)
    std::copy_n(state, width_, forward_.states().row(i));
  else
    std::fill_n(forward_.states().row(i), width_, 0.0f);
}

// Its rows have been added, up to slot `end`.
void EagleDrafts::end_request(RequestRow row, int32_t end, int32_t rows, bool wants_draft) {
  const int32_t b = inputs_.live()++;
  inputs_.rows()[b] = row;
  inputs_.lengths()[b] = {end};
  inputs_.extend_lengths()[b] = {rows};
  if (!wants_draft) return;
  wanted_.push_back(row);
  inputs_.wanted_rows()[inputs_.wanted_count()++] = inputs_.query_rows() - 1;
  inputs_.logits_count() = inputs_.wanted_count();
}

void EagleDrafts::run(attn::Mode mode) {
  if (inputs_.live() == 0) return;
  const attn::StepShape shape{
      .mode = mode, .captured = inputs_.live(), .query_rows = inputs_.query_rows(), .table = table_.view()};
  attn::check_step(shape, inputs_.inputs(), arena_.limits());
  forward_.run(shape, inputs_.inputs(), arena_, store_, exec_);
  guesses_.resize(wanted_.size());
  exec_.parallel(std::ssize(wanted_), [&](int64_t i, int thread) { guesses_[i] = guess(i, thread); });
}

// A head whose logits are no numbers has nothing to say, and does no harm.
DraftToken EagleDrafts::guess(int64_t row, int thread) const {
  static const ops::SamplingParams kLikeliest{.temperature = 0};
  try {
    const ops::Sampled sampled = sampler_.sample(
        {.logits = forward_.logits().row(row), .params = &kLikeliest, .position = 0, .top_logprobs = 0}, thread);
    return {.token = token_ids_[sampled.token], .hit = std::exp(sampled.logprob)};
  } catch (const CheckError&) {
    return {.token = token_ids_.front(), .hit = 0};
  }
}

}  // namespace quire::engine
