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

std::vector<ops::Sampled> draw_tokens(Seen seen, uint64_t count) {
  std::vector<ops::Sampled> tokens;
  for (; count > 0; --count) {
    tokens.push_back({.token = seen.next_token()});
    seen.see(seen.key_of(tokens.back().token));
  }
  return tokens;
}

// Where a walk goes from a row that drew a token; -1: nowhere.
int32_t next_row(const Batch& batch, const Share& share, int32_t from, int32_t token) {
  if (stops_at(*share.request, token)) return -1;
  for (int32_t row = from + 1; row < share.drawn.count; ++row) {
    const WantedRow& draft = batch.drawn[share.drawn.begin + row];
    if (draft.follows == from && batch.token_ids[draft.row] == token) return row;
  }
  return -1;
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
  if (!speaks_(random_)) return;
  for (size_t i = text.size(); std::ssize(drafts) < most; ++i) {
    const int32_t known = i < whole_.size() ? whole_[i] : 0;
    drafts.push_back({.token = right_(random_) ? known : (known + 1) % kVocabulary, .hit = 1});
  }
}

void KnowingTreeDrafter::propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) {
  std::vector<int32_t> wrong;  // drafts
  const auto add = [&](int32_t token, int32_t parent) {
    const auto i = static_cast<int32_t>(drafts.size());
    drafts.push_back({.token = token, .hit = 1, .back = i - parent});
    return i;
  };
  int32_t parent = -1;
  for (size_t at = text.size(); std::ssize(drafts) < most; ++at) {
    const int32_t known = at < whole_.size() ? whole_[at] : 0, before = parent;
    const int32_t place = right_(random_) ? trees_.least_place + below(trees_.topk - trees_.least_place) : trees_.topk;
    for (int32_t i = 0; i < trees_.topk && std::ssize(drafts) < most; ++i) {
      if (i == place)
        parent = add(known, before);
      else
        wrong.push_back(add((known + 1 + i) % kVocabulary, before));
    }
    if (trees_.strays && !wrong.empty() && std::ssize(drafts) < most && below(2))
      wrong.push_back(add(below(kVocabulary), wrong[below(static_cast<int32_t>(wrong.size()))]));
    if (parent == before) parent = wrong[below(static_cast<int32_t>(wrong.size()))];  // nothing behind it comes
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

void HashModel::draw(const Batch& batch) { launched_.back().batch = batch; }

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
  Seen text;
  std::vector<Seen> drawn;                 // what each row that may draw has seen
  int32_t walk = share.sits_out ? -1 : 0;  // the row that draws, if it is one
  const WantedRow* scored = batch.scored.data() + share.scored.begin;
  for (int32_t position = 0; position < share.end(); ++position) {
    const bool is_draft = position >= share.text_end();
    const auto index = static_cast<int32_t>(drawn.size());
    Seen seen = is_draft ? drawn[batch.drawn[share.drawn.begin + index].follows] : text;
    uint64_t& key = keys_[slots[position].value];
    if (position >= share.position) {
      const int32_t token = batch.token_ids[share.first_row + position - share.position];
      key = seen.key_of(token == kFutureToken ? newest_tokens_[share.row.value] : token);
    }
    overwritten_reads_ += key == kOverwritten;
    seen.see(key);
    if (!is_draft) text = seen;
    if (share.draws && position + 1 >= share.text_end()) {
      drawn.push_back(seen);
      RowResult& row = results.drawn.emplace_back();
      if (index == walk) {
        row.tokens = draw_tokens(seen, share.drafts > 0 ? 1 : 1 + seen.hash % most_tokens);
        newest_tokens_[share.row.value] = row.tokens.back().token;
        walk = next_row(batch, share, index, row.tokens.front().token);
      }
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
  if (share.drafts > 0) keep_path(share, slots, results);
}

void HashModel::keep_path(const Share& share, const std::vector<TokenSlot>& slots, const StepResults& results) {
  const std::vector<int32_t> path = walked_rows(share, results);
  const auto key = [&](int32_t row) -> uint64_t& { return keys_[slots[share.text_end() - 1 + row].value]; };
  for (int32_t depth = 0; depth <= share.drafts; ++depth)
    key(depth) = depth < std::ssize(path) ? key(path[depth]) : kOverwritten;
}

}  // namespace quire::engine::testing
