// For tests: a model that is nothing but arithmetic, so that schedules are tested without weights.
//
// The "key" of a token is a hash of the token and of all keys before it, which are read back through the request's
// pages; the next token follows from all keys. So a token that was lost, doubled or stored elsewhere, and a page that
// belongs to another text, all change what is generated from there on. Logprobs and rows to be pooled are made of the
// keys too.
//
// It is a device that may answer late: a launched step is computed no sooner than its answer is asked for, from the
// pages that the table named when it was launched. A page that returns to the pool is overwritten at once; a step that
// reads what was overwritten and not written since is counted. So are slots of drafts that did not come.
#pragma once
#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "engine/drafter.h"
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

// Knows how a text goes on, and says so of each token with probability `right`; else it says another. It is always
// sure, and says something with probability `speaks`.
class KnowingDrafter final : public Drafter {
 public:
  // whole: the text with all that comes.
  KnowingDrafter(std::vector<int32_t> whole, double right, uint32_t seed, double speaks = 1)
      : whole_(std::move(whole)), right_(right), speaks_(speaks), random_(seed) {}
  void propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) override;

 private:
  std::vector<int32_t> whole_;
  std::bernoulli_distribution right_, speaks_;
  std::mt19937 random_;
};

// The same with trees: behind each token on the way there are up to `topk` drafts, of which one is right with
// probability `right`; strays: and others follow those that are wrong.
class KnowingTreeDrafter final : public Drafter {
 public:
  struct Trees {
    int32_t topk;
    int32_t least_place = 0;  // of the right one among its siblings
    bool strays = true;
  };
  KnowingTreeDrafter(std::vector<int32_t> whole, double right, uint32_t seed, const Trees& trees)
      : whole_(std::move(whole)), right_(right), random_(seed), trees_(trees) {}
  void propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) override;

 private:
  int32_t below(int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(random_); }

  std::vector<int32_t> whole_;
  std::bernoulli_distribution right_;
  std::mt19937 random_;
  Trees trees_;
};

class HashModel {
 public:
  explicit HashModel(const SchedulerLimits& limits);

  void launch(const Batch& batch, const kv::RequestTable& table);
  void draw(const Batch& batch);  // the newest that was launched: who sits out
  StepResults answer();           // of the oldest step that was launched and has not been answered
  void fail();                    // that step is not computed, and those behind it compute nothing of use
  StepResults run(const Batch& batch, const kv::RequestTable& table) {
    launch(batch, table);
    return answer();
  }
  void overwrite_free_pages(const kv::PagePool& pool);

  int64_t overwritten_reads() const { return overwritten_reads_; }
  int32_t most_tokens = 1;  // that a draw without drafts gives, as many as it pleases

 private:
  struct Launched {
    Batch batch;
    std::vector<std::vector<TokenSlot>> slots = {};  // [shares][end] of all tokens that a share sees
    bool failed = false;
  };
  void overwrite(PageId page);
  void compute(const Launched& step, const Share& share, StepResults& results);
  void keep_path(const Share& share, const std::vector<TokenSlot>& slots, const StepResults& results);

  PageSize page_size_;
  std::vector<uint64_t> keys_;          // [slots]
  std::vector<int32_t> newest_tokens_;  // [request rows]
  std::deque<Launched> launched_;
  int64_t overwritten_reads_ = 0;
};

}  // namespace quire::engine::testing
