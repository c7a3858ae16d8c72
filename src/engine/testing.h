// For tests: a model that is nothing but arithmetic, so that schedules are tested without weights.
//
// The "key" of a token is a hash of the token and of all keys before it, which are read back through the request's
// pages; the next token follows from all keys. So a token that was lost, doubled or stored elsewhere, and a page that
// belongs to another text, all change what is generated from there on.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler.h"

namespace quire::engine::testing {

inline constexpr int32_t kVocabulary = 50;

// What the request gives in an engine that it has for itself: tokens, and how it ends.
struct Expected {
  std::vector<int32_t> tokens;
  Finish finish;
};
Expected expected_of(const Request& request, const SchedulerLimits& limits);

class HashModel {
 public:
  explicit HashModel(const SchedulerLimits& limits);
  // One token for each share that wants logits.
  std::span<ops::Sampled> run(const Batch& batch, const kv::RequestTable& table);

 private:
  std::vector<uint64_t> keys_;  // [slots]
  std::vector<ops::Sampled> sampled_;
};

}  // namespace quire::engine::testing
