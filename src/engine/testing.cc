#include "engine/testing.h"

#include <algorithm>

namespace quire::engine::testing {
namespace {

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
};

}  // namespace

Expected expected_of(const Request& request, const SchedulerLimits& limits) {
  Seen seen;
  for (const int32_t token : request.prompt) seen.see(seen.key_of(token));
  Expected expected{.tokens = {}, .finish = Finish::length};
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

HashModel::HashModel(const SchedulerLimits& limits)
    : keys_((int64_t{limits.pages} + 1) * limits.page_size.tokens(), 0xdead) {}

std::span<ops::Sampled> HashModel::run(const Batch& batch, const kv::RequestTable& table) {
  sampled_.clear();
  for (const auto& [sequence, count, wants_logits] : batch.shares) {
    Seen seen;
    for (int32_t position = 0; position < sequence->computed + count; ++position) {
      uint64_t& key = keys_[table.slot(sequence->row, position).value];
      if (position >= sequence->computed) key = seen.key_of(sequence->tokens[position]);
      seen.see(key);
    }
    if (wants_logits) sampled_.push_back({.token = seen.next_token(), .logprob = -1, .top = {}});
  }
  return sampled_;
}

}  // namespace quire::engine::testing
