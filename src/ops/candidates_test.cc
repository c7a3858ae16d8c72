#include "ops/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/testing_rows.h"

namespace quire::ops {
namespace {

using namespace testing;

// Logits with many ties, some at -inf, and all of them in the order of likelihood.
struct Vocabulary {
  explicit Vocabulary(size_t count) : logits(random_floats(count, count)) {
    for (float& logit : logits) logit = logit < -1.5f ? -kInfinity : std::round(logit * 4) / 4;
    view = view_logits(logits, logit_scan(best_isa()), maxima);
    for (size_t id = 0; id < count; ++id)
      if (!std::isinf(logits[id])) sorted.push_back({logits[id], static_cast<int32_t>(id)});
    std::sort(sorted.begin(), sorted.end(), before);
  }

  std::vector<float> logits, maxima;
  LogitView view;
  std::vector<Candidate> sorted;
};

std::vector<int32_t> ids_of(const std::vector<Candidate>& candidates) {
  std::vector<int32_t> ids;
  for (const Candidate& candidate : candidates) ids.push_back(candidate.id);
  return ids;
}

TEST(Candidates, LikeliestIsTheFirstOfEqualOnes) {
  for (const size_t count : {3, 64, 100, 1000}) {
    const Vocabulary vocabulary(count);
    EXPECT_EQ(likeliest(vocabulary.view).id, vocabulary.sorted[0].id);
    EXPECT_EQ(likeliest(vocabulary.view).logit, vocabulary.sorted[0].logit);
  }
}

TEST(Candidates, GatherKeepsTheOrderOfIds) {
  const Vocabulary vocabulary(1000);
  std::vector<Candidate> out = {{1, 1}, {2, 2}};  // what was there before goes
  for (const float least : {-kInfinity, -1.0f, 0.25f, 2.0f, 100.0f}) {
    std::vector<int32_t> expected;
    for (int32_t id = 0; id < 1000; ++id)
      if (vocabulary.logits[id] >= least && !std::isinf(vocabulary.logits[id])) expected.push_back(id);
    gather(vocabulary.view, least, out);
    EXPECT_EQ(ids_of(out), expected) << least;
  }
}

TEST(Candidates, GatherLikeliestTakesExactlySoMany) {
  for (const size_t size : {3, 64, 100, 1000}) {
    const Vocabulary vocabulary(size);
    std::vector<Candidate> out;
    std::vector<float> bounds;
    for (const int32_t count : {0, 1, 2, 3, 10, 16, 17, 500, 5000}) {
      gather_likeliest(vocabulary.view, count, out, bounds);
      const size_t expected = std::min<size_t>(static_cast<size_t>(count), vocabulary.sorted.size());
      ASSERT_EQ(out.size(), expected);
      if (expected == 0) continue;
      EXPECT_EQ(out.back().id, vocabulary.sorted[expected - 1].id) << "the last lies last";
      std::sort(out.begin(), out.end(), before);
      EXPECT_EQ(ids_of(out), ids_of({vocabulary.sorted.begin(), vocabulary.sorted.begin() + expected}));
    }
  }
}

}  // namespace
}  // namespace quire::ops
