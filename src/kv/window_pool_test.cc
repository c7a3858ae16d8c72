#include "kv/window_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/testing/expect_refused.h"

namespace quire::kv {
namespace {

class WindowPoolOfPageSize : public testing::TestWithParam<int32_t> {};

// Decode one token at a time: every position the next query sees must have a live page of its own.
TEST_P(WindowPoolOfPageSize, KeepsWhatAQueryCanSeeAndReturnsTheRest) {
  const int32_t tokens = GetParam();
  for (const int32_t window : {0, 1, 15, 16, 17, 100}) {
    SCOPED_TRACE(window);
    const int32_t most_pages = (window + 1 + tokens - 1) / tokens + 1;
    WindowPool windowed(most_pages + 1, PageSize(tokens), 3, 1000, {window});
    const RequestRow row = windowed.open();
    for (int32_t position = 0; position < 1000; ++position) {
      windowed.advance(row, position);
      ASSERT_TRUE(windowed.reserve(row, {position + 1})) << "at position " << position;
      ASSERT_LE(windowed.pool().used_pages(), most_pages);
      for (int32_t seen = std::max(0, position - window); seen <= position; ++seen)
        windowed.pool().check_live(PageSize(tokens).page_of(windowed.table().slot(row, seen)));
      const int32_t first_kept = windowed.table().first_page(row) * tokens;
      ASSERT_LT(std::max(0, position - window) - first_kept, tokens) << "a page left the window and stayed";
    }
    EXPECT_GT(windowed.table().first_page(row), 0);
    windowed.pool().audit();
    windowed.close(row);
    EXPECT_EQ(windowed.pool().used_pages(), 0);
    windowed.pool().audit();
  }
}

// Prompts come in chunks: the first query of the next chunk decides what may go.
TEST_P(WindowPoolOfPageSize, ChunkedRequestsShareThePool) {
  const int32_t tokens = GetParam();
  constexpr int32_t kWindow = 40;
  constexpr int32_t kLength = 900;
  WindowPool windowed(3 * ((kWindow + 150) / tokens + 2) + 1, PageSize(tokens), 4, kLength, {kWindow});
  std::mt19937 random(11);
  const RequestRow rows[] = {windowed.open(), windowed.open(), windowed.open()};
  int32_t done[] = {0, 0, 0};
  while (*std::min_element(done, done + 3) < kLength) {
    const int which = static_cast<int>(random() % 3);
    const int32_t chunk = std::min<int32_t>(1 + random() % 150, kLength - done[which]);
    ASSERT_TRUE(windowed.reserve(rows[which], {done[which] + chunk}));
    for (int32_t seen = std::max(0, done[which] - kWindow); seen < done[which] + chunk; ++seen)
      (void)windowed.table().slot(rows[which], seen);
    done[which] += chunk;
    windowed.advance(rows[which], done[which]);
  }
  for (const RequestRow row : rows) windowed.close(row);
  EXPECT_EQ(windowed.pool().used_pages(), 0);
  windowed.pool().audit();
}

INSTANTIATE_TEST_SUITE_P(PageSizes, WindowPoolOfPageSize, testing::Values(1, 16, 64));

TEST(WindowPool, DraftsThatWereNotAcceptedCanBeTakenBack) {
  WindowPool windowed(20, PageSize(16), 3, 500, {32});
  const RequestRow row = windowed.open();
  ASSERT_TRUE(windowed.reserve(row, {100}));
  windowed.advance(row, 90);  // 10 drafts at 90..99, none accepted yet
  windowed.table().truncate(row, {91});
  windowed.advance(row, 91);
  for (int32_t seen = 91 - 32; seen < 91; ++seen) (void)windowed.table().slot(row, seen);
}

TEST(WindowPool, RefusesToGoBackPastReturnedPages) {
  WindowPool windowed(20, PageSize(16), 3, 500, {32});
  const RequestRow row = windowed.open();
  ASSERT_TRUE(windowed.reserve(row, {100}));
  windowed.advance(row, 80);
  windowed.advance(row, 80);
  expect_refused([&] { windowed.advance(row, 79); }, "cannot go back to position 79");
  expect_refused([&] { windowed.advance(row, -1); }, "no position -1");
  expect_refused([&] { windowed.advance({2}, 5); }, "request row 2 is not open");
}

TEST(WindowPool, RefusesANegativeWindow) {
  expect_refused([] { WindowPool(20, PageSize(16), 3, 500, {-4}); }, "window of -4 tokens");
}

}  // namespace
}  // namespace quire::kv
