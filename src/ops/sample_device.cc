#include "ops/sample_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "ops/sample_record.h"
#include "ops/sample_weight.h"

namespace quire::ops {
namespace {

// A list in pinned memory. It grows before the kernel that reads it is launched, and its address is told to that kernel
// by value, so it may move.
template <class T>
class PinnedList {
 public:
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  int32_t size() const { return size_; }
  void clear() { size_ = 0; }
  // Room for so many more, not filled; where they begin.
  int32_t add(size_t count) {
    const size_t needed = static_cast<size_t>(size_) + count;
    if (needed * sizeof(T) > memory_.size()) grow(needed);
    const int32_t begin = size_;
    size_ = static_cast<int32_t>(needed);
    return begin;
  }
  int32_t add(std::span<const T> values) {
    const int32_t begin = add(values.size());
    std::copy(values.begin(), values.end(), data() + begin);
    return begin;
  }

 private:
  void grow(size_t needed) {
    Buffer larger(std::max(needed * sizeof(T), 2 * memory_.size()), Place::pinned);
    if (size_ > 0) std::memcpy(larger.data(), memory_.data(), static_cast<size_t>(size_) * sizeof(T));
    memory_ = std::move(larger);
  }

  Buffer memory_;
  int32_t size_ = 0;
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
  PinnedList<LogitBias> bias;
  PinnedList<uint32_t> masks;
  PinnedList<int32_t> ids;
  PinnedList<TopLogprob> top;
  PinnedList<float> wanted;
  struct OnHost {  // a row whose logprobs the host computes
    int32_t row, top_logprobs;
    std::vector<int32_t> ids;
  };
  std::vector<OnHost> on_host;
};

struct DeviceSampler::State {
  State(const DeviceSamplerLimits& limits)
      : steps(static_cast<size_t>(limits.steps) * sizeof(SampleStep), Place::pinned),
        records(static_cast<size_t>(limits.steps) * limits.rows * sizeof(SampleRecord), Place::pinned),
        outcomes(static_cast<size_t>(limits.steps) * limits.rows * sizeof(SampleOutcome), Place::pinned),
        words(2 * sizeof(uint32_t), Place::pinned),
        texts(kTextCopies * static_cast<size_t>(limits.text) * sizeof(int32_t), Place::pinned),
        device(2 * sizeof(uint64_t) + static_cast<size_t>(limits.request_rows) * sizeof(int32_t), Place::device),
        counts(static_cast<size_t>(limits.penalty_slots) * limits.vocabulary * sizeof(uint32_t), Place::device),
        slots(static_cast<size_t>(limits.steps)) {}

  uint32_t* finished() const { return elements<uint32_t>(words); }
  uint32_t* recounted() const { return elements<uint32_t>(words) + 1; }
  uint64_t* begun() const { return elements<uint64_t>(device); }
  uint32_t* arrived() const { return reinterpret_cast<uint32_t*>(begun() + 1); }
  int32_t* token_of_row() const { return reinterpret_cast<int32_t*>(begun() + 2); }

  Buffer steps, records, outcomes;  // pinned: [steps], [steps, rows], [steps, rows]
  Buffer words;                     // pinned: the last step that is finished, the last text that was counted
  Buffer texts;                     // pinned: [kTextCopies, text]
  Buffer device;                    // when the step began, rows that have arrived, token_of_row
  Buffer counts;
  std::vector<Slot> slots;
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
  std::memset(state_->words.data(), 0, state_->words.size());
  const std::vector<std::byte> zeros(state_->device.size());
  exec.stream()->copy(state_->device.data(), zeros.data(), zeros.size());
  exec.wait();
}

DeviceSampler::~DeviceSampler() = default;

DeviceSampler::Slot& DeviceSampler::slot(uint32_t number) const { return state_->slots[number % limits_.steps]; }

const int32_t* DeviceSampler::token_of_row() const { return state_->token_of_row(); }

// --- before a step is launched

void DeviceSampler::begin(uint32_t number) {
  // The slot's step before is over, unless somebody did not read its results: then at least nothing runs any more.
  if (!has_reached(state_->finished(), number - static_cast<uint32_t>(limits_.steps))) exec_.wait();
  state_->number = number;
  Slot& own = slot(number);
  own.bias.clear();
  own.masks.clear();
  own.ids.clear();
  own.top.clear();
  own.wanted.clear();
  own.on_host.clear();
  step(number) = {};
}

SampleStep& DeviceSampler::step(uint32_t number) const {
  return elements<SampleStep>(state_->steps)[number % limits_.steps];
}

// The next row's record, with what the row says of logprobs.
SampleRecord& DeviceSampler::add_row(const SampleRow& row) {
  SampleStep& to = step(state_->number);
  Slot& own = slot(state_->number);
  check(to.rows < limits_.rows, "a step of more than ", limits_.rows, " rows to be sampled");
  check(row.top_logprobs >= -1 && row.top_logprobs <= limits_.vocabulary, "top_logprobs must be in [-1, ",
        limits_.vocabulary, "], got ", row.top_logprobs);
  for (const int32_t id : row.logprob_ids)
    check(id >= 0 && id < limits_.vocabulary, "logprob_ids name token ", id, ", outside the vocabulary of ",
          limits_.vocabulary);
  SampleRecord& record =
      elements<SampleRecord>(state_->records)[state_->number % limits_.steps * limits_.rows + to.rows];
  record = {};
  if (exceeds_results(row)) {
    own.on_host.push_back({to.rows, row.top_logprobs, {row.logprob_ids.begin(), row.logprob_ids.end()}});
    record.top_count = 0;
  } else if (row.top_logprobs >= 0) {
    record.top_count = row.top_logprobs;
    record.top_begin = own.top.add(static_cast<size_t>(row.top_logprobs));
    record.ids_count = static_cast<int32_t>(row.logprob_ids.size());
    record.ids_begin = own.ids.add(row.logprob_ids);
    own.wanted.add(row.logprob_ids.size());
  }
  return record;
}

// The row counts; the lists may have moved.
void DeviceSampler::publish_row() {
  SampleStep& to = step(state_->number);
  const Slot& own = slot(state_->number);
  to.bias = own.bias.data();
  to.masks = own.masks.data();
  to.ids = own.ids.data();
  to.top = own.top.data();
  to.wanted = own.wanted.data();
  ++to.rows;
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

  SampleRecord& record = add_row(row);
  Slot& own = slot(state_->number);
  record.task = SampleTask::draw;
  record.request_row = request_row.value;
  if (params.temperature > 0) record.per_logit = weight_scale(0, params.temperature).per_logit;
  record.random = random_bits(params.seed, static_cast<uint64_t>(row.position));
  record.least_weight = min_p_weight(params.min_p);
  record.top_p = params.top_p;
  record.top_k = params.top_k > 0 && params.top_k < limits_.vocabulary ? params.top_k : 0;
  if (penalises) {
    record.penalty_slot = penalty_slot;
    record.repetition_penalty = params.repetition_penalty;
    record.frequency_penalty = params.frequency_penalty;
    record.presence_penalty = params.presence_penalty;
  }
  if (!params.logit_bias.empty()) {
    record.bias_count = static_cast<int32_t>(params.logit_bias.size());
    record.bias_begin = own.bias.add(params.logit_bias.size());
    LogitBias* const list = own.bias.data() + record.bias_begin;
    std::transform(params.logit_bias.begin(), params.logit_bias.end(), list, [](const auto& each) {
      return LogitBias{each.first, each.second};
    });
    std::stable_sort(list, list + record.bias_count,
                     [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  }
  if (row.mask) {
    const size_t words = (static_cast<size_t>(limits_.vocabulary) + 31) / 32;
    record.mask = own.masks.add(std::span(row.mask, words)) / static_cast<int32_t>(words);
  }
  publish_row();
}

void DeviceSampler::score(const SampleRow& row, int32_t token) {
  check(token >= 0 && token < limits_.vocabulary, "token ", token, " is outside the vocabulary of ",
        limits_.vocabulary);
  check(row.top_logprobs >= 0, "a row without logprobs cannot be scored");
  SampleRecord& record = add_row(row);
  record.task = SampleTask::score;
  record.token = token;
  publish_row();
}

void DeviceSampler::skip() {
  add_row({.logits = nullptr, .params = nullptr, .position = 0});
  publish_row();
}

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
  if (!has_reached(state_->recounted(), number - kTextCopies)) exec_.wait();
  auto* const text = elements<int32_t>(state_->texts) + int64_t{number % kTextCopies} * limits_.text;
  std::copy(generated.begin(), generated.end(), std::copy(prompt.begin(), prompt.end(), text));
  cuda::recount({.text = text,
                 .prompt = static_cast<int32_t>(prompt.size()),
                 .generated = static_cast<int32_t>(generated.size()),
                 .counts = elements<uint32_t>(state_->counts) + int64_t{penalty_slot} * limits_.vocabulary,
                 .vocabulary = limits_.vocabulary,
                 .recounted = state_->recounted(),
                 .number = number},
                exec_);
}

// --- in the stream, or recorded

void DeviceSampler::resolve_future_tokens(const FutureTokens& tokens) {
  cuda::resolve_future_tokens({.ids = tokens.ids,
                               .count = tokens.count,
                               .most = tokens.most,
                               .tokens = tokens.tokens,
                               .token_of_row = state_->token_of_row(),
                               .begun = state_->begun()},
                              exec_);
}

void DeviceSampler::launch(Rows<const float> logits, const uint32_t* number) {
  check(logits.rows > 0 && logits.rows <= limits_.rows && logits.dim >= limits_.vocabulary, "logits of ", logits.rows,
        " rows of ", logits.dim, ", up to ", limits_.rows, " of at least ", limits_.vocabulary);
  state_->logits = logits;
  cuda::sample_rows({.logits = logits.data,
                     .stride = logits.stride,
                     .rows = static_cast<int32_t>(logits.rows),
                     .vocabulary = limits_.vocabulary,
                     .number = number,
                     .slots = static_cast<uint32_t>(limits_.steps),
                     .most_rows = limits_.rows,
                     .steps = elements<SampleStep>(state_->steps),
                     .records = elements<SampleRecord>(state_->records),
                     .outcomes = elements<SampleOutcome>(state_->outcomes),
                     .finished = state_->finished(),
                     .token_of_row = state_->token_of_row(),
                     .counts = elements<uint32_t>(state_->counts),
                     .arrived = state_->arrived(),
                     .begun = state_->begun()},
                    exec_);
}

// --- afterwards

bool DeviceSampler::finished(uint32_t number) const { return has_reached(state_->finished(), number); }

void DeviceSampler::wait(uint32_t number) const {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience{1};
  const Clock::time_point start = Clock::now();
  while (!finished(number)) {
    if (Clock::now() - start < kPatience) continue;
    exec_.wait();  // throws what went wrong, if something did
    check(finished(number), "step ", number, " was not sampled");
  }
}

double DeviceSampler::seconds(uint32_t number) const {
  const SampleStep& of = step(number);
  return static_cast<double>(of.end - of.begin) * 1e-9;
}

Sampled DeviceSampler::result(uint32_t number, int32_t row) {
  check(finished(number), "step ", number, " is not finished");
  const size_t at = number % limits_.steps * static_cast<size_t>(limits_.rows) + static_cast<size_t>(row);
  check(row >= 0 && row < step(number).rows, "row ", row, " of a step of ", step(number).rows);
  const SampleRecord& record = elements<SampleRecord>(state_->records)[at];
  const SampleOutcome& outcome = elements<SampleOutcome>(state_->outcomes)[at];
  if (record.task == SampleTask::skip) return {};
  check_status(outcome.status);
  const Slot& own = slot(number);
  for (const Slot::OnHost& each : own.on_host)
    if (each.row == row) return score_on_host(row, outcome.token, each.top_logprobs, each.ids);
  Sampled sampled{.token = outcome.token, .logprob = outcome.logprob};
  for (int32_t i = 0; i < outcome.top && i < record.top_count; ++i) {
    const TopLogprob& each = own.top.data()[record.top_begin + i];
    sampled.top.emplace_back(each.token, each.logprob);
  }
  for (int32_t i = record.ids_begin; i < record.ids_begin + record.ids_count; ++i)
    sampled.wanted.emplace_back(own.ids.data()[i], own.wanted.data()[i]);
  return sampled;
}

Sampled DeviceSampler::score_on_host(int32_t row, int32_t token, int32_t top_logprobs, std::span<const int32_t> ids) {
  State& state = *state_;
  if (!state.sampler) state.sampler.emplace(limits_.vocabulary, exec_);
  state.row_logits.resize(static_cast<size_t>(limits_.vocabulary));
  exec_.stream()->copy(reinterpret_cast<std::byte*>(state.row_logits.data()),
                       reinterpret_cast<const std::byte*>(state.logits.row(row)),
                       state.row_logits.size() * sizeof(float));
  exec_.wait();
  return state.sampler->score({.logits = state.row_logits.data(),
                               .params = nullptr,
                               .position = 0,
                               .top_logprobs = top_logprobs,
                               .logprob_ids = ids},
                              token, 0);
}

}  // namespace quire::ops
