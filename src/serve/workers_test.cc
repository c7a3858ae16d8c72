#include "serve/workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>

namespace quire::serve {
namespace {

constexpr Weight kLight = Weight::light, kHeavy = Weight::heavy;

TEST(Workers, OneDoesItsTasksInOrder) {
  std::vector<int> order;
  std::promise<void> last;
  Workers workers(1);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(workers.run(kLight, "me", [&, i] { order.push_back(i); }));
  EXPECT_TRUE(workers.run(kLight, "me", [&] { last.set_value(); }));
  last.get_future().wait();
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Workers, ASlowTaskDoesNotHoldUpTheOthers) {
  std::promise<void> slow, quick;
  Workers workers(2);
  EXPECT_TRUE(workers.run(kLight, "me", [&] { slow.get_future().wait(); }));
  EXPECT_TRUE(workers.run(kLight, "other", [&] { quick.set_value(); }));
  EXPECT_EQ(quick.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  slow.set_value();
}

// Holds a thread of a lane until it is let go.
struct Held {
  Held(Workers& workers, Weight weight) {
    EXPECT_TRUE(workers.run(weight, "holder", [this] {
      begun.set_value();
      release.get_future().wait();
    }));
    begun.get_future().wait();
  }
  std::promise<void> begun, release;
};

TEST(Workers, LightTasksDoNotWaitForHeavyOnes) {
  std::promise<void> light;
  std::atomic<int> heavy_done = 0;
  Workers workers(1);
  Held held(workers, kHeavy);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(workers.run(kHeavy, "me", [&] { ++heavy_done; }));
  EXPECT_TRUE(workers.run(kLight, "me", [&] { light.set_value(); }));
  EXPECT_EQ(light.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(heavy_done, 0);
  held.release.set_value();
}

TEST(Workers, OneCallerNeverHasAllThreads) {
  std::promise<void> other;
  std::atomic<int> more = 0;
  Workers workers(2);
  Held held(workers, kHeavy);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(workers.run(kHeavy, "holder", [&] { ++more; }));
  EXPECT_TRUE(workers.run(kHeavy, "other", [&] { other.set_value(); }));
  EXPECT_EQ(other.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(more, 0) << "they wait for their own caller's";
  held.release.set_value();
  while (more < 10) std::this_thread::yield();
}

TEST(Workers, CallersTakeTurns) {
  std::string order;
  std::promise<void> last;
  Workers workers(1);
  Held held(workers, kHeavy);
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(workers.run(kHeavy, "many", [&, name] { order += name; }));
  EXPECT_TRUE(workers.run(kHeavy, "one", [&] { order += "1"; }));
  EXPECT_TRUE(workers.run(kHeavy, "many", [&] { last.set_value(); }));
  held.release.set_value();
  last.get_future().wait();
  EXPECT_EQ(order, "a1bc");
}

TEST(Workers, WhenManyWaitMoreAreNotTaken) {
  std::atomic<int> done = 0;
  Workers workers(1, 2);
  Held held(workers, kLight);
  EXPECT_TRUE(workers.run(kLight, "one", [&] { ++done; }));
  EXPECT_TRUE(workers.run(kLight, "two", [&] { ++done; }));
  EXPECT_FALSE(workers.run(kLight, "three", [&] { ++done; }));
  EXPECT_TRUE(workers.run(kHeavy, "three", [&] { ++done; })) << "the other lane has room";
  held.release.set_value();
  while (done < 3) std::this_thread::yield();
  std::promise<void> taken_again;
  EXPECT_TRUE(workers.run(kLight, "three", [&] { taken_again.set_value(); }));
  taken_again.get_future().wait();
  EXPECT_EQ(done, 3);
}

TEST(Workers, WhatHasNotBegunAtTheEndIsDropped) {
  std::promise<void> begun, release;
  std::atomic<int> done = 0;
  std::thread other;
  {
    Workers workers(1);
    EXPECT_TRUE(workers.run(kLight, "me", [&] {
      begun.set_value();
      release.get_future().wait();
      ++done;
    }));
    EXPECT_TRUE(workers.run(kLight, "me", [&] { ++done; }));
    begun.get_future().wait();
    other = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the destructor has begun by then
      release.set_value();
    });
  }
  other.join();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace quire::serve
