#include "engine/testing.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace quire::engine::testing {
namespace {

constexpr int kWidth = 3;                  // of a row
constexpr uint64_t kOverwritten = 0xdead;  // in place of a key

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// All keys of a text, as "attention" sees them.
struct Seen {
  uint64_t hash = 0;

  void see(uint64_t key) { hash = hash * 0x9e3779b97f4a7c15u + key; }
  uint64_t key_of(int32_t token) const { return mixed(hash ^ (static_cast<uint64_t>(token) << 32)); }
  int32_t next_token() const { return static_cast<int32_t>(mixed(hash) % kVocabulary); }
  float logprob_of(int32_t token) const {
    return -static_cast<float>(mixed(hash + static_cast<uint64_t>(token)) % 997);
  }
  std::array<float, kWidth> row() const {
    std::array<float, kWidth> row;
    for (int i = 0; i < kWidth; ++i) row[i] = static_cast<float>(mixed(hash) >> (16 * i) & 0xffff) / 1000 - 30;
    return row;
  }
};

std::vector<ops::Sampled> draw(Seen seen, uint64_t count) {
  std::vector<ops::Sampled> tokens;
  for (; count > 0; --count) {
    tokens.push_back({.token = seen.next_token()});
    seen.see(seen.key_of(tokens.back().token));
  }
  return tokens;
}

std::vector<float> unit_vector(const std::vector<double>& sum) {
  double square = 0;
  for (const double x : sum) square += x * x;
  std::vector<float> unit;
  for (const double x : sum) unit.push_back(static_cast<float>(x * (1 / std::sqrt(square))));
  return unit;
}

// Token by token, in one piece.
Expected expected_of_prompt(const Request& request, Seen& seen) {
  Expected expected;
  std::vector<double> sum;
  const auto length = std::ssize(request.prompt);
  for (int64_t position = 0; position < length; ++position) {
    const int32_t token = request.prompt[position];
    if (request.prompt_logprobs_from >= 0 && position >= request.prompt_logprobs_from)
      expected.prompt_logprobs.emplace_back(token, position == 0 ? 0 : seen.logprob_of(token));
    seen.see(seen.key_of(token));
    if (request.pooling == Pooling::none || (request.pooling == Pooling::last && position + 1 < length)) continue;
    sum.resize(kWidth);
    for (int i = 0; i < kWidth; ++i) sum[i] += static_cast<double>(seen.row()[i]);
  }
  expected.embedding = unit_vector(sum);
  return expected;
}

}  // namespace

Expected expected_of(const Request& request, const SchedulerLimits& limits) {
  Seen seen;
  Expected expected = expected_of_prompt(request, seen);
  const int64_t pool = int64_t{limits.pages} * limits.page_size.tokens();
  const auto ends = [&] {
    const auto generated = std::ssize(expected.tokens), length = std::ssize(request.prompt) + generated;
    return generated == request.max_new_tokens || length == limits.context || length > pool;
  };
  while (!ends()) {
    expected.tokens.push_back(seen.next_token());
    if (std::count(request.stop_ids.begin(), request.stop_ids.end(), expected.tokens.back())) {
      expected.finish = Finish::stop;
      break;
    }
    seen.see(seen.key_of(expected.tokens.back()));
  }
  return expected;
}

// Also where it knows nothing any more.
void KnowingDrafter::propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) {
  for (size_t i = text.size(); std::ssize(drafts) < most; ++i) {
    const int32_t known = i < whole_.size() ? whole_[i] : 0;
    drafts.push_back({.token = right_(random_) ? known : (known + 1) % kVocabulary, .hit = 1});
  }
}

HashModel::HashModel(const SchedulerLimits& limits)
    : page_size_(limits.page_size),
      keys_((int64_t{limits.pages} + 1) * limits.page_size.tokens(), kOverwritten),
      newest_tokens_(limits.running + 1) {}

void HashModel::overwrite(PageId page) {
  const auto begin = keys_.begin() + page_size_.slot(page, 0).value;
  std::fill(begin, begin + page_size_.tokens(), kOverwritten);
}

void HashModel::overwrite_free_pages(const kv::PagePool& pool) {
  for (int32_t page = 1; page < pool.pages(); ++page)
    if (pool.references({page}) == 0) overwrite({page});
}

// A page that is written from its beginning comes from the pool: it was overwritten when it returned there.
void HashModel::launch(const Batch& batch, const kv::RequestTable& table) {
  Launched& step = launched_.emplace_back(Launched{.batch = batch});
  for (const Share& share : batch.shares) {
    std::vector<TokenSlot>& slots = step.slots.emplace_back();
    for (int32_t position = 0; position < share.end(); ++position) {
      slots.push_back(table.slot(share.row, position));
      if (position >= share.position && position % page_size_.tokens() == 0)
        overwrite(page_size_.page_of(slots.back()));
    }
  }
}

StepResults HashModel::answer() {
  const Launched step = std::move(launched_.front());
  launched_.pop_front();
  StepResults results{.width = kWidth};
  if (step.failed) {
    results.drawn.assign(step.batch.drawn.size(), {.tokens = {{.token = 0}}});
    results.scored.assign(step.batch.scored.size(), {.tokens = {{.token = 0}}});
    results.pooled.resize(step.batch.pooled.size() * kWidth);
    return results;
  }
  for (const Share& share : step.batch.shares) compute(step, share, results);
  return results;
}

void HashModel::fail() {
  launched_.pop_front();
  for (Launched& step : launched_) step.failed = true;
}

void HashModel::compute(const Launched& step, const Share& share, StepResults& results) {
  const Batch& batch = step.batch;
  const std::vector<TokenSlot>& slots = step.slots[&share - batch.shares.data()];
  Seen seen;
  bool walks = share.draws;  // all drafts so far have come
  const WantedRow* scored = batch.scored.data() + share.scored.begin;
  for (int32_t position = 0; position < share.end(); ++position) {
    uint64_t& key = keys_[slots[position].value];
    if (position >= share.position) {
      const int32_t token = batch.token_ids[share.first_row + position - share.position];
      key = seen.key_of(token == kFutureToken ? newest_tokens_[share.row.value] : token);
    }
    overwritten_reads_ += key == kOverwritten;
    seen.see(key);
    if (share.draws && position + 1 >= share.text_end()) {
      RowResult& row = results.drawn.emplace_back();
      if (walks) row.tokens = draw(seen, share.drafts > 0 ? 1 : 1 + seen.hash % most_tokens);
      if (walks) newest_tokens_[share.row.value] = row.tokens.back().token;
      const int32_t next = share.first_row + position + 1 - share.position;
      walks = walks && position + 1 < share.end() && row.tokens.front().token == batch.token_ids[next] &&
              !stops_at(*share.request, batch.token_ids[next]);
    }
    if (position < share.kept.begin || position >= share.kept.end) continue;
    if (share.pooled.count > 0) {
      const auto row = seen.row();
      results.pooled.insert(results.pooled.end(), row.begin(), row.end());
    } else {
      const int32_t next = (scored++)->token;
      results.scored.push_back({.tokens = {{.token = next, .logprob = seen.logprob_of(next)}}});
    }
  }
}

}  // namespace quire::engine::testing
