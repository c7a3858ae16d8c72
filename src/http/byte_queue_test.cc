#include "http/byte_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

namespace quire::http {
namespace {

TEST(ByteQueue, JoinsSmallParts) {
  ByteQueue queue;
  for (int i = 0; i < 100; ++i) queue.add("part ");
  EXPECT_EQ(queue.size(), 500u);
  EXPECT_EQ(queue.front().size(), 500u);
}

TEST(ByteQueue, KeepsLargePartsAsTheyAre) {
  ByteQueue queue;
  std::string large(1 << 20, 'x');
  const char* address = large.data();
  queue.add("head");
  queue.add(std::move(large));
  EXPECT_EQ(queue.front(), "head");
  queue.take(4);
  EXPECT_EQ(queue.front().data(), address);
}

TEST(ByteQueue, HoldsAPartUntilAllOfItIsTaken) {
  ByteQueue queue;
  queue.add(std::string(100'000, 'x'));
  queue.take(99'999);
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.held_bytes(), 100'000u);
  queue.take(1);
  EXPECT_EQ(queue.held_bytes(), 0u);
}

TEST(ByteQueue, GivesBackWhatCameInOrder) {
  ByteQueue queue;
  std::string expected, taken;
  for (int i = 0; i < 200; ++i) {
    const std::string part(i * 37 % 9000, static_cast<char>('a' + i % 26));
    expected += part;
    queue.add(part);
    const size_t count = queue.empty() ? 0 : std::min<size_t>(queue.front().size(), i * 61 % 7000);
    if (count == 0) continue;
    taken += queue.front().substr(0, count);
    queue.take(count);
  }
  while (!queue.empty()) {
    taken += queue.front();
    queue.take(queue.front().size());
  }
  EXPECT_EQ(taken, expected);
}

TEST(ByteQueue, TakesOverAnother) {
  ByteQueue queue, other;
  other.add("ab");
  queue.add(std::move(other));
  EXPECT_EQ(queue.front(), "ab");
  queue.take(1);
  ByteQueue third;
  third.add("cd");
  queue.add(std::move(third));
  EXPECT_EQ(queue.front(), "bcd");
  EXPECT_TRUE(third.empty());  // NOLINT(bugprone-use-after-move): it says so
}

TEST(ByteQueue, IsEmptyAfterClear) {
  ByteQueue queue;
  queue.add("abc");
  queue.take(1);
  queue.clear();
  EXPECT_TRUE(queue.empty());
  queue.add("d");
  EXPECT_EQ(queue.front(), "d");
}

}  // namespace
}  // namespace quire::http
