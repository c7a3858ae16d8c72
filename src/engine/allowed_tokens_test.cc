#include "engine/allowed_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace quire::engine {
namespace {

constexpr int32_t kVocabulary = 70;

class FixedMask final : public TokenMask {
 public:
  explicit FixedMask(std::vector<int32_t> ids) {
    for (const int32_t id : ids) words_[id / 32] |= uint32_t{1} << id % 32;
  }
  const uint32_t* next() override {
    ++asked;
    return words_;
  }
  void accept(int32_t) override {}

  int asked = 0;

 private:
  uint32_t words_[3] = {0, 0, ~uint32_t{0} << 6};  // bits behind the vocabulary are set
};

struct Asked {
  Request request;
  int32_t generated = 0;

  // All that may be drawn.
  std::vector<int32_t> allowed() const {
    std::vector<uint32_t> scratch;
    const uint32_t* own = request.mask ? request.mask->next() : nullptr;
    const uint32_t* mask = allowed_tokens(request, generated, own, kVocabulary, scratch);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < kVocabulary; ++id)
      if (!mask || (mask[id / 32] >> id % 32 & 1)) ids.push_back(id);
    return ids;
  }
};

TEST(AllowedTokens, AllWithoutAMask) {
  EXPECT_EQ(Asked{}.allowed().size(), 70u);
  Asked asked{.request = {.stop_ids = {3, 69}}};
  EXPECT_EQ(asked.allowed().size(), 70u);
}

TEST(AllowedTokens, StopIdsOnlyAfterTheFewestTokens) {
  Asked asked{.request = {.stop_ids = {3, 69, 70, -1, 1000}, .min_new_tokens = 2}};
  for (asked.generated = 0; asked.generated < 2; ++asked.generated) {
    const std::vector<int32_t> ids = asked.allowed();
    EXPECT_EQ(ids.size(), 68u);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 3) + std::count(ids.begin(), ids.end(), 69), 0);
  }
  EXPECT_EQ(asked.allowed().size(), 70u);
}

TEST(AllowedTokens, TheMaskAndTheStopIds) {
  const auto mask = std::make_shared<FixedMask>(std::vector<int32_t>{1, 40, 69});
  Asked asked{.request = {.stop_ids = {40}, .min_new_tokens = 1, .mask = mask}};
  EXPECT_EQ(asked.allowed(), (std::vector<int32_t>{1, 69}));
  asked.generated = 1;
  EXPECT_EQ(asked.allowed(), (std::vector<int32_t>{1, 40, 69}));
  EXPECT_EQ(mask->asked, 2) << "once for each draw";
}

TEST(AllowedTokens, WhereOnlyStopIdsAreAllowedTheyStay) {
  Asked asked{.request = {.stop_ids = {40, 41, 69}, .min_new_tokens = 9}};
  asked.request.mask = std::make_shared<FixedMask>(std::vector<int32_t>{40, 69});
  EXPECT_EQ(asked.allowed(), (std::vector<int32_t>{40, 69}));
  asked.request.mask = nullptr;
  asked.request.stop_ids.clear();
  for (int32_t id = 0; id < kVocabulary; ++id) asked.request.stop_ids.push_back(id);
  EXPECT_EQ(asked.allowed().size(), 70u);
}

}  // namespace
}  // namespace quire::engine
