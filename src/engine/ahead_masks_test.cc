#include "engine/ahead_masks.h"

#include <gtest/gtest.h>

#include <latch>
#include <string>

#include "base/testing/expect_refused.h"

namespace quire::engine {
namespace {

using namespace std::chrono_literals;

// Allows the token after the last one that it was told.
class CountingMask final : public TokenMask {
 public:
  const uint32_t* next() override {
    word_ = uint32_t{1} << (last_ + 1);
    return &word_;
  }
  void accept(int32_t token) override { last_ = token; }

 private:
  int32_t last_ = 0;
  uint32_t word_ = 0;
};

class SlowMask final : public TokenMask {
 public:
  explicit SlowMask(std::latch& held) : held_(held) {}
  const uint32_t* next() override {
    held_.wait();
    return nullptr;
  }
  void accept(int32_t) override {}

 private:
  std::latch& held_;
};

bool gets_ready(MaskThreads& threads, const AheadMask& mask) {
  threads.wait([&] { return mask.ready(); }, 30s);
  return mask.ready();
}

TEST(AheadMasks, AreToldTheLastTokenAndAskedForTheNext) {
  MaskThreads threads;
  const auto mask = std::make_shared<AheadMask>(std::make_shared<CountingMask>());
  EXPECT_FALSE(mask->ready());
  for (int32_t token = 1; token < 10; ++token) {
    threads.begin(mask);
    threads.begin(mask);  // it was begun
    ASSERT_TRUE(gets_ready(threads, *mask));
    threads.begin(mask);  // nothing was drawn since
    EXPECT_TRUE(mask->ready());
    EXPECT_EQ(*mask->bits(), uint32_t{1} << token);
    mask->drew(token);
    EXPECT_FALSE(mask->ready());
  }
}

TEST(AheadMasks, OneThatTakesLongHoldsUpNoneThatHasBeenQuick) {
  std::latch held(1);
  MaskThreads threads;
  const auto quick = std::make_shared<AheadMask>(std::make_shared<CountingMask>());
  threads.begin(quick);
  ASSERT_TRUE(gets_ready(threads, *quick));
  quick->drew(1);
  std::vector<std::shared_ptr<AheadMask>> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(std::make_shared<AheadMask>(std::make_shared<SlowMask>(held)));
    threads.begin(slow.back());
  }
  threads.begin(quick);
  EXPECT_TRUE(gets_ready(threads, *quick));
  for (const auto& mask : slow) EXPECT_FALSE(mask->ready());
  threads.wait([&] { return slow[0]->ready(); }, 1ms);  // ends with its time
  held.count_down();
  for (const auto& mask : slow) EXPECT_TRUE(gets_ready(threads, *mask));
}

TEST(AheadMasks, WhatAMaskThrowsIsThrownAtTheDraw) {
  class Throwing final : public TokenMask {
    const uint32_t* next() override { throw ConstraintRefused("no"); }
    void accept(int32_t) override {}
  };
  MaskThreads threads;
  const auto mask = std::make_shared<AheadMask>(std::make_shared<Throwing>());
  expect_refused([&] { mask->bits(); }, "not ready");
  threads.begin(mask);
  ASSERT_TRUE(gets_ready(threads, *mask));
  for (int i = 0; i < 2; ++i) EXPECT_THROW(mask->bits(), ConstraintRefused);
  expect_refused([&] { mask->drew(1); }, "without its mask");
}

TEST(AheadMasks, ThoseOfRequestsThatAreGoneAreNotAsked) {
  class Asked final : public TokenMask {
   public:
    explicit Asked(bool& asked) : asked_(asked) {}
    const uint32_t* next() override {
      asked_ = true;
      return nullptr;
    }
    void accept(int32_t) override {}

   private:
    bool& asked_;
  };
  bool asked = false;
  std::latch held(1);
  {
    MaskThreads threads;
    const auto slow = std::make_shared<AheadMask>(std::make_shared<SlowMask>(held));
    const auto last = std::make_shared<AheadMask>(std::make_shared<CountingMask>());
    threads.begin(slow);
    threads.begin(std::make_shared<AheadMask>(std::make_shared<Asked>(asked)));
    threads.begin(last);
    held.count_down();
    EXPECT_TRUE(gets_ready(threads, *last));
  }
  EXPECT_FALSE(asked);
}

}  // namespace
}  // namespace quire::engine
