#include "ops/sample_device.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "ops/sample_record.h"
#include "ops/sample_weight.h"

namespace quire::ops {
namespace {

// Lists in pinned memory, one after the other, that stay where they are until all are cleared.
template <class T>
class PinnedLists {
 public:
  void clear() { current_ = used_ = 0; }
  T* add(size_t count) {  // not filled
    while (current_ < chunks_.size() && used_ + count > room(current_)) {
      ++current_;
      used_ = 0;
    }
    if (current_ == chunks_.size()) chunks_.emplace_back(std::max(count * sizeof(T), kLeastBytes), Place::pinned);
    T* const list = reinterpret_cast<T*>(chunks_[current_].data()) + used_;
    used_ += count;
    return list;
  }
  T* add(std::span<const T> values) {
    T* const list = add(values.size());
    std::copy(values.begin(), values.end(), list);
    return list;
  }

 private:
  static constexpr size_t kLeastBytes = 1 << 16;
  size_t room(size_t chunk) const { return chunks_[chunk].size() / sizeof(T); }

  std::vector<Buffer> chunks_;
  size_t current_ = 0, used_ = 0;
};

template <class T>
T* elements(const Buffer& buffer) {
  return reinterpret_cast<T*>(buffer.data());
}

// Numbers of steps wrap around; those that are compared lie close together.
bool has_reached(const uint32_t* word, uint32_t number) {
  const uint32_t reached = std::atomic_ref(*const_cast<uint32_t*>(word)).load(std::memory_order_acquire);
  return static_cast<int32_t>(reached - number) >= 0;
}

bool has_arrived(SampleOutcome& outcome, uint32_t number) {
  for (NumberedWord* word : {&outcome.token, &outcome.logprob, &outcome.status, &outcome.nanoseconds}) {
    const uint64_t bits = std::atomic_ref(*reinterpret_cast<uint64_t*>(word)).load(std::memory_order_acquire);
    if (static_cast<uint32_t>(bits >> 32) != number) return false;
  }
  return true;
}

bool penalises_text(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

void check_status(SampleStatus status) {
  check(status != SampleStatus::broken_logits, "the logits hold NaN or infinity");
  check(status != SampleStatus::no_logits, "all logits are -inf");
  check(status != SampleStatus::no_token, "bias, penalties and mask leave no token");
}

constexpr size_t kMostIds = 1024;    // of a row; who wants more has the host score it
constexpr uint32_t kTextCopies = 4;  // of texts on their way to be counted

bool exceeds_results(const SampleRow& row) {
  return row.top_logprobs > kMostTopLogprobs || (row.top_logprobs >= 0 && row.logprob_ids.size() > kMostIds);
}

}  // namespace

// A step's part of the ring beside its records.
struct DeviceSampler::Slot {
  PinnedLists<LogitBias> bias;
  PinnedLists<uint32_t> masks;
  PinnedLists<int32_t> ids;
  PinnedLists<TopLogprob> top;
  PinnedLists<float> wanted;
  uint32_t number = 0;  // of its step
  int32_t rows = 0;
  int32_t arrived = 0;  // of them, as far as somebody has looked
  struct OnHost {       // a row whose logprobs the host computes
    int32_t row, top_logprobs;
    std::vector<int32_t> ids;
  };
  std::vector<OnHost> on_host;
};

struct DeviceSampler::State {
  State(const DeviceSamplerLimits& limits)
      : records(static_cast<size_t>(limits.steps) * limits.rows * sizeof(SampleRecord), Place::pinned),
        outcomes(static_cast<size_t>(limits.steps) * limits.rows * sizeof(SampleOutcome), Place::pinned),
        recounted(sizeof(uint32_t), Place::pinned),
        texts(kTextCopies * static_cast<size_t>(limits.text) * sizeof(int32_t), Place::pinned),
        device(sizeof(StepClock) + (static_cast<size_t>(limits.request_rows) + limits.rows) * sizeof(int32_t),
               Place::device),
        counts(static_cast<size_t>(limits.penalty_slots) * limits.vocabulary * sizeof(uint32_t), Place::device),
        slots(static_cast<size_t>(limits.steps)),
        request_rows(limits.request_rows) {}

  StepClock* clock() const { return elements<StepClock>(device); }
  int32_t* token_of_row() const { return reinterpret_cast<int32_t*>(clock() + 1); }
  int32_t* token_of_step() const { return token_of_row() + request_rows; }

  Buffer records, outcomes;  // pinned: [steps, rows]
  Buffer recounted;          // pinned: the number of the last text that was counted
  Buffer texts;              // pinned: [kTextCopies, text]
  Buffer device;             // the clock; token_of_row; token_of_step
  Buffer counts;
  std::vector<Slot> slots;
  int32_t request_rows;
  uint32_t number = 0;  // of the step that was begun
  uint32_t recounts = 0;
  Rows<const float> logits{};      // where a step's lie
  std::optional<Sampler> sampler;  // of the host; made when a row first needs it
  std::vector<float> row_logits;
};

DeviceSampler::DeviceSampler(const DeviceSamplerLimits& limits, Exec& exec) : limits_(limits), exec_(exec) {
  check(exec.device() == Device::cuda, "a sampler of the GPU needs an Exec with a stream");
  check(limits.vocabulary > 0 && limits.vocabulary <= cuda::most_vocabulary(), "a sampler for a vocabulary of ",
        limits.vocabulary, ", up to ", cuda::most_vocabulary(), " on a GPU");
  check(limits.rows > 0 && limits.request_rows > 0 && limits.penalty_slots >= 0 && limits.text >= 0 && limits.steps > 0,
        "a sampler of ", limits.rows, " rows of ", limits.request_rows, " requests, ", limits.steps, " steps");
  state_ = std::make_unique<State>(limits);
  std::memset(state_->recounted.data(), 0, state_->recounted.size());
  std::memset(state_->outcomes.data(), 0, state_->outcomes.size());
  std::fill_n(elements<SampleRecord>(state_->records), limits.steps * limits.rows, SampleRecord{});
  const std::vector<std::byte> zeros(state_->device.size());
  exec.stream()->copy(state_->device.data(), zeros.data(), zeros.size());
  exec.wait();
}

DeviceSampler::~DeviceSampler() = default;

DeviceSampler::Slot& DeviceSampler::slot(uint32_t number) const { return state_->slots[number % limits_.steps]; }

DrawnTokens DeviceSampler::drawn_tokens() const {
  return {state_->token_of_row(), state_->clock(), limits_.request_rows};
}

const int32_t* DeviceSampler::tokens_of_step() const { return state_->token_of_step(); }

// --- before a step is launched

void DeviceSampler::begin(uint32_t number) {
  Slot& own = slot(number);
  // The slot's step before is over, unless somebody did not read its results: then at least nothing runs any more.
  if (own.number != 0 && !finished(own.number)) quire::cuda::wait_for_stream(*exec_.stream());
  state_->number = own.number = number;
  for (int32_t row = 0; row < own.rows; ++row) record(number, row) = {};
  own.bias.clear();
  own.masks.clear();
  own.ids.clear();
  own.top.clear();
  own.wanted.clear();
  own.rows = own.arrived = 0;
  own.on_host.clear();
}

SampleRecord& DeviceSampler::record(uint32_t number, int32_t row) const {
  return elements<SampleRecord>(state_->records)[int64_t{number % limits_.steps} * limits_.rows + row];
}

// The next row's record, with what the row says of logprobs.
SampleRecord& DeviceSampler::add_row(const SampleRow& row) {
  Slot& own = slot(state_->number);
  check(own.rows < limits_.rows, "a step of more than ", limits_.rows, " rows to be sampled");
  check(row.top_logprobs >= -1 && row.top_logprobs <= limits_.vocabulary, "top_logprobs must be in [-1, ",
        limits_.vocabulary, "], got ", row.top_logprobs);
  for (const int32_t id : row.logprob_ids)
    check(id >= 0 && id < limits_.vocabulary, "logprob_ids name token ", id, ", outside the vocabulary of ",
          limits_.vocabulary);
  SampleRecord& added = record(state_->number, own.rows);
  added.number = state_->number;
  if (exceeds_results(row)) {
    own.on_host.push_back({own.rows, row.top_logprobs, {row.logprob_ids.begin(), row.logprob_ids.end()}});
    added.top_count = 0;
  } else if (row.top_logprobs >= 0) {
    added.top_count = row.top_logprobs;
    added.top = own.top.add(static_cast<size_t>(row.top_logprobs));
    added.ids_count = static_cast<int32_t>(row.logprob_ids.size());
    added.ids = own.ids.add(row.logprob_ids);
    added.wanted = own.wanted.add(row.logprob_ids.size());
  }
  ++own.rows;
  return added;
}

void DeviceSampler::draw(const SampleRow& row, RequestRow request_row, int32_t penalty_slot) {
  check(row.params != nullptr, "a row to be sampled needs parameters");
  check(row.position >= 0, "a token cannot be drawn for position ", row.position);
  check(request_row.value >= 0 && request_row.value < limits_.request_rows, "request row ", request_row, " of ",
        limits_.request_rows);
  const SamplingParams& params = *row.params;
  check_sampling(params, limits_.vocabulary);
  const bool penalises = penalises_text(params);
  check(!penalises || (penalty_slot >= 0 && penalty_slot < limits_.penalty_slots), "penalties of slot ", penalty_slot,
        ", of ", limits_.penalty_slots);

  SampleRecord& drawn = add_row(row);
  Slot& own = slot(state_->number);
  drawn.task = SampleTask::draw;
  drawn.request_row = request_row.value;
  if (params.temperature > 0) drawn.per_logit = weight_scale(0, params.temperature).per_logit;
  drawn.random = random_bits(params.seed, static_cast<uint64_t>(row.position));
  drawn.least_weight = min_p_weight(params.min_p);
  drawn.top_p = params.top_p;
  drawn.top_k = params.top_k > 0 && params.top_k < limits_.vocabulary ? params.top_k : 0;
  if (penalises) {
    drawn.penalty_slot = penalty_slot;
    drawn.repetition_penalty = params.repetition_penalty;
    drawn.frequency_penalty = params.frequency_penalty;
    drawn.presence_penalty = params.presence_penalty;
  }
  if (!params.logit_bias.empty()) {
    drawn.bias_count = static_cast<int32_t>(params.logit_bias.size());
    LogitBias* const list = own.bias.add(params.logit_bias.size());
    std::transform(params.logit_bias.begin(), params.logit_bias.end(), list, [](const auto& each) {
      return LogitBias{each.first, each.second};
    });
    const auto comes_before = [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; };
    if (!std::is_sorted(list, list + drawn.bias_count, comes_before))
      std::stable_sort(list, list + drawn.bias_count, comes_before);
    drawn.bias = list;
  }
  if (row.mask) drawn.mask = own.masks.add(std::span(row.mask, (static_cast<size_t>(limits_.vocabulary) + 31) / 32));
}

void DeviceSampler::score(const SampleRow& row, int32_t token) {
  check(token >= 0 && token < limits_.vocabulary, "token ", token, " is outside the vocabulary of ",
        limits_.vocabulary);
  check(row.top_logprobs >= 0, "a row without logprobs cannot be scored");
  SampleRecord& scored = add_row(row);
  scored.task = SampleTask::score;
  scored.token = token;
}

void DeviceSampler::skip() { add_row({.logits = nullptr, .params = nullptr, .position = 0}); }

bool DeviceSampler::wants_logits() const { return !slot(state_->number).on_host.empty(); }

void DeviceSampler::recount(int32_t penalty_slot, std::span<const int32_t> prompt, std::span<const int32_t> generated) {
  check(penalty_slot >= 0 && penalty_slot < limits_.penalty_slots, "penalty slot ", penalty_slot, " of ",
        limits_.penalty_slots);
  check(prompt.size() + generated.size() <= static_cast<size_t>(limits_.text), "a text of ",
        prompt.size() + generated.size(), " tokens to be counted, up to ", limits_.text);
  for (const auto& text : {prompt, generated})
    for (const int32_t token : text)
      check(token >= 0 && token < limits_.vocabulary, "the text holds token ", token, ", outside the vocabulary of ",
            limits_.vocabulary);
  const uint32_t number = ++state_->recounts;
  if (!has_reached(elements<uint32_t>(state_->recounted), number - kTextCopies))
    quire::cuda::wait_for_stream(*exec_.stream());
  auto* const text = elements<int32_t>(state_->texts) + int64_t{number % kTextCopies} * limits_.text;
  std::copy(generated.begin(), generated.end(), std::copy(prompt.begin(), prompt.end(), text));
  cuda::recount({.text = text,
                 .prompt = static_cast<int32_t>(prompt.size()),
                 .generated = static_cast<int32_t>(generated.size()),
                 .counts = elements<uint32_t>(state_->counts) + int64_t{penalty_slot} * limits_.vocabulary,
                 .vocabulary = limits_.vocabulary,
                 .recounted = elements<uint32_t>(state_->recounted),
                 .number = number},
                exec_);
}

// --- in the stream, or recorded

void DeviceSampler::launch(Rows<const float> logits, const uint32_t* number, const int32_t* live) {
  check(logits.rows > 0 && logits.rows <= limits_.rows && logits.dim >= limits_.vocabulary, "logits of ", logits.rows,
        " rows of ", logits.dim, ", up to ", limits_.rows, " of at least ", limits_.vocabulary);
  state_->logits = logits;
  cuda::sample_rows({.logits = logits.data,
                     .stride = logits.stride,
                     .rows = static_cast<int32_t>(logits.rows),
                     .vocabulary = limits_.vocabulary,
                     .live = live,
                     .number = number,
                     .slots = static_cast<uint32_t>(limits_.steps),
                     .most_rows = limits_.rows,
                     .records = elements<SampleRecord>(state_->records),
                     .outcomes = elements<SampleOutcome>(state_->outcomes),
                     .token_of_row = state_->token_of_row(),
                     .token_of_step = state_->token_of_step(),
                     .counts = elements<uint32_t>(state_->counts),
                     .clock = state_->clock()},
                    exec_);
}

// --- afterwards

SampleOutcome& DeviceSampler::outcome(uint32_t number, int32_t row) const {
  return elements<SampleOutcome>(state_->outcomes)[int64_t{number % limits_.steps} * limits_.rows + row];
}

bool DeviceSampler::finished(uint32_t number) const {
  Slot& own = slot(number);
  if (own.number != number) return static_cast<int32_t>(own.number - number) > 0;  // an older one
  // A step of nobody has its first row said, too.
  for (; own.arrived < std::max(own.rows, 1); ++own.arrived) {
    const bool is_silent = own.arrived > 0 && record(number, own.arrived).task == SampleTask::skip;
    if (!is_silent && !has_arrived(outcome(number, own.arrived), number)) return false;
  }
  return true;
}

void DeviceSampler::wait(uint32_t number, std::chrono::milliseconds patience) const {
  const bool is_there = quire::cuda::wait_for_device([&] { return finished(number); }, *exec_.stream(), patience);
  check(is_there, "step ", number, " was not sampled");
}

double DeviceSampler::seconds(uint32_t number) const {
  uint32_t longest = 0;
  for (int32_t row = 0; row < std::max(slot(number).rows, 1); ++row)
    if (has_arrived(outcome(number, row), number)) longest = std::max(longest, outcome(number, row).nanoseconds.value);
  return longest * 1e-9;
}

double DeviceSampler::idle_seconds(uint32_t number) const { return outcome(number, 0).idle.value * 1e-9; }

Sampled DeviceSampler::result(uint32_t number, int32_t row) {
  check(finished(number), "step ", number, " is not finished");
  const Slot& own = slot(number);
  check(row >= 0 && row < own.rows, "row ", row, " of a step of ", own.rows);
  const SampleRecord& asked = record(number, row);
  if (asked.task == SampleTask::skip) return {};
  const SampleOutcome& said = outcome(number, row);
  check_status(static_cast<SampleStatus>(said.status.value % 4));
  const auto token = static_cast<int32_t>(said.token.value), top = static_cast<int32_t>(said.status.value / 4);
  for (const Slot::OnHost& each : own.on_host)
    if (each.row == row) return score_on_host(row, token, each.top_logprobs, each.ids);
  Sampled sampled{.token = token, .logprob = std::bit_cast<float>(said.logprob.value)};
  for (int32_t i = 0; i < std::min(top, asked.top_count); ++i)
    sampled.top.emplace_back(asked.top[i].token, asked.top[i].logprob);
  for (int32_t i = 0; i < asked.ids_count; ++i) sampled.wanted.emplace_back(asked.ids[i], asked.wanted[i]);
  return sampled;
}

Sampled DeviceSampler::score_on_host(int32_t row, int32_t token, int32_t top_logprobs, std::span<const int32_t> ids) {
  State& state = *state_;
  if (!state.sampler) state.sampler.emplace(limits_.vocabulary, exec_);
  state.row_logits.resize(static_cast<size_t>(limits_.vocabulary));
  exec_.stream()->copy(reinterpret_cast<std::byte*>(state.row_logits.data()),
                       reinterpret_cast<const std::byte*>(state.logits.row(row)),
                       state.row_logits.size() * sizeof(float));
  quire::cuda::wait_for_stream(*exec_.stream());
  return state.sampler->score({.logits = state.row_logits.data(),
                               .params = nullptr,
                               .position = 0,
                               .top_logprobs = top_logprobs,
                               .logprob_ids = ids},
                              token, 0);
}

}  // namespace quire::ops
