#include "serve/fair_queue.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::serve {
namespace {

class FairQueueTest : public ::testing::Test {
 protected:
  bool push(const std::string& caller, const std::string& name) {
    return queue_.push(caller, [this, name] { order_ += name; });
  }
  std::string order() {
    while (queue_.ready()) run_next();
    return order_;
  }
  void run_next() {
    const FairQueue::Begun begun = queue_.pop();
    begun.task();
    queue_.done(begun.caller);
  }

  FairQueue queue_{8, 2};
  std::string order_;
};

TEST_F(FairQueueTest, CallersTakeTurns) {
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(push("one", name));
  EXPECT_TRUE(push("two", "1"));
  EXPECT_TRUE(push("three", "x"));
  EXPECT_TRUE(push("two", "2"));
  EXPECT_EQ(order(), "a1xb2c");
  expect_refused([&] { queue_.pop(); }, "nobody waits");
  expect_refused([&] { queue_.done("one"); }, "nothing under way");
}

TEST_F(FairQueueTest, WhoComesBackIsBehindThoseWhoWait) {
  EXPECT_TRUE(push("one", "a"));
  EXPECT_TRUE(push("two", "1"));
  run_next();
  EXPECT_TRUE(push("one", "b"));
  EXPECT_TRUE(push("two", "2"));
  EXPECT_EQ(order(), "a1b2");
}

TEST_F(FairQueueTest, OneCallerTakesHalfOfIt) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(push("one", "a"));
  EXPECT_FALSE(push("one", "a"));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(push(std::to_string(i), "b"));
  EXPECT_FALSE(push("more", "c")) << "it is full";
  EXPECT_EQ(order(), "abbbbaaa");
}

TEST_F(FairQueueTest, WhoHasManyUnderWayIsPassed) {
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(push("one", name));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(queue_.pop().caller, "one");
  EXPECT_FALSE(queue_.ready()) << "two of its three";
  EXPECT_TRUE(push("two", "1"));
  EXPECT_EQ(queue_.pop().caller, "two");
  EXPECT_FALSE(queue_.ready());
  queue_.done("one");
  EXPECT_EQ(queue_.pop().caller, "one");
}

}  // namespace
}  // namespace quire::serve
