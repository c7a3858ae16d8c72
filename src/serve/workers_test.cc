#include "serve/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace quire::serve {
namespace {

TEST(Workers, OneDoesItsTasksInOrder) {
  std::vector<int> order;
  std::promise<void> last;
  Workers workers(1);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(workers.run([&, i] { order.push_back(i); }));
  EXPECT_TRUE(workers.run([&] { last.set_value(); }));
  last.get_future().wait();
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Workers, ASlowTaskDoesNotHoldUpTheOthers) {
  std::promise<void> slow, quick;
  Workers workers(2);
  EXPECT_TRUE(workers.run([&] { slow.get_future().wait(); }));
  EXPECT_TRUE(workers.run([&] { quick.set_value(); }));
  EXPECT_EQ(quick.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  slow.set_value();
}

TEST(Workers, WhenManyWaitMoreAreNotTaken) {
  std::promise<void> begun, go_on;
  std::atomic<int> done = 0;
  Workers workers(1, 2);
  EXPECT_TRUE(workers.run([&] {
    begun.set_value();
    go_on.get_future().wait();
  }));
  begun.get_future().wait();
  EXPECT_TRUE(workers.run([&] { ++done; }));
  EXPECT_TRUE(workers.run([&] { ++done; }));
  EXPECT_FALSE(workers.run([&] { ++done; }));
  go_on.set_value();
  while (done < 2) std::this_thread::yield();
  std::promise<void> taken_again;
  EXPECT_TRUE(workers.run([&] { taken_again.set_value(); }));
  taken_again.get_future().wait();
  EXPECT_EQ(done, 2);
}

TEST(Workers, WhatHasNotBegunAtTheEndIsDropped) {
  std::promise<void> begun, go_on;
  std::atomic<int> done = 0;
  std::thread other;
  {
    Workers workers(1);
    EXPECT_TRUE(workers.run([&] {
      begun.set_value();
      go_on.get_future().wait();
      ++done;
    }));
    EXPECT_TRUE(workers.run([&] { ++done; }));
    begun.get_future().wait();
    other = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the destructor has begun by then
      go_on.set_value();
    });
  }
  other.join();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace quire::serve
