// For tests: a model that is nothing but arithmetic, so that schedules are tested without weights.
//
// The "key" of a token is a hash of the token and of all keys before it, which are read back through the request's
// pages; the next token follows from all keys. So a token that was lost, doubled or stored elsewhere, and a page that
// belongs to another text, all change what is generated from there on. Logprobs and rows to be pooled are made of the
// keys too.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/scheduler.h"

namespace quire::engine::testing {

inline constexpr int32_t kVocabulary = 50;

// What the request gives in an engine that it has for itself.
struct Expected {
  std::vector<int32_t> tokens = {};
  std::vector<std::pair<int32_t, float>> prompt_logprobs = {};
  std::vector<float> embedding = {};
  Finish finish = Finish::length;
};
Expected expected_of(const Request& request, const SchedulerLimits& limits);

class HashModel {
 public:
  explicit HashModel(const SchedulerLimits& limits);
  StepResults run(const Batch& batch, const kv::RequestTable& table);  // valid until the next run

 private:
  std::vector<uint64_t> keys_;  // [slots]
  std::vector<RowResult> drawn_, scored_;
  std::vector<float> pooled_;  // [pooled, width]
};

}  // namespace quire::engine::testing
