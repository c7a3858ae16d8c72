#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/testing/expect_refused.h"

namespace quire::kv {
namespace {

PageId take_one(PagePool& pool) {
  PageId page{-1};
  EXPECT_TRUE(pool.allocate({&page, 1}));
  return page;
}

TEST(PagePool, HandsOutEveryPageOnceAndNeverTheReservedOne) {
  PagePool pool(9, PageSize(16));
  EXPECT_EQ(pool.free_pages(), 8);
  std::vector<PageId> taken(8);
  ASSERT_TRUE(pool.allocate(taken));
  const std::set<PageId> distinct(taken.begin(), taken.end());
  EXPECT_EQ(distinct.size(), 8u);
  EXPECT_FALSE(distinct.contains(kReservedPage));
  EXPECT_EQ(pool.used_pages(), 8);
  EXPECT_EQ(pool.free_pages(), 0);
  pool.audit();
}

TEST(PagePool, AllocatesAllOrNothing) {
  PagePool pool(5, PageSize(16));
  take_one(pool);
  std::vector<PageId> four(4, PageId{-7});
  EXPECT_FALSE(pool.allocate(four));
  EXPECT_EQ(four, std::vector<PageId>(4, PageId{-7}));
  EXPECT_EQ(pool.free_pages(), 3);
  EXPECT_TRUE(pool.allocate({four.data(), 3}));
  EXPECT_TRUE(pool.allocate({}));
  pool.audit();
}

TEST(PagePool, FreesAPageWithItsLastReference) {
  PagePool pool(3, PageSize(1));
  const PageId page = take_one(pool);
  pool.retain(page);
  EXPECT_EQ(pool.references(page), 2);
  pool.release(page);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.release(page);
  EXPECT_EQ(pool.references(page), 0);
  EXPECT_EQ(pool.free_pages(), 2);
}

TEST(PagePool, TakesThePageFreedLastFirst) {
  PagePool pool(10, PageSize(1));
  std::vector<PageId> taken(5);
  ASSERT_TRUE(pool.allocate(taken));
  pool.release(taken[2]);
  EXPECT_EQ(take_one(pool), taken[2]);
}

TEST(PagePool, RefusesDoubleFree) {
  PagePool pool(10, PageSize(16));
  std::vector<PageId> taken(7);
  ASSERT_TRUE(pool.allocate(taken));
  pool.release(taken[6]);
  expect_refused([&] { pool.release(taken[6]); }, cat("page ", taken[6], " is free"));
  EXPECT_EQ(pool.free_pages(), 3);
  pool.audit();
}

TEST(PagePool, RefusesUseAfterFree) {
  PagePool pool(10, PageSize(16));
  const PageId page = take_one(pool);
  pool.check_live(page);
  pool.release(page);
  expect_refused([&] { pool.retain(page); }, cat("page ", page, " is free"));
  expect_refused([&] { pool.check_live(page); }, cat("page ", page, " is free"));
  EXPECT_EQ(pool.references(page), 0);
  pool.audit();
}

TEST(PagePool, RefusesIdsOutsideThePool) {
  PagePool pool(10, PageSize(16));
  for (const PageId outside : {PageId{10}, PageId{-1}, PageId{1 << 30}}) {
    const std::string message = cat("page ", outside, " is outside the pool of 10 pages");
    expect_refused([&] { pool.retain(outside); }, message);
    expect_refused([&] { pool.release(outside); }, message);
    expect_refused([&] { pool.references(outside); }, message);
    expect_refused([&] { pool.check_live(outside); }, message);
  }
  pool.audit();
}

TEST(PagePool, KeepsTheReservedPage) {
  PagePool pool(10, PageSize(16));
  expect_refused([&] { pool.retain(kReservedPage); }, "page 0 is reserved");
  expect_refused([&] { pool.release(kReservedPage); }, "page 0 is reserved");
  expect_refused([&] { pool.check_live(kReservedPage); }, "page 0 is reserved");
  EXPECT_EQ(pool.references(kReservedPage), 1);
}

TEST(PagePool, RefusesSizesThatMakeNoSense) {
  for (const int32_t pages : {1, 0, -5})
    expect_refused([&] { PagePool(pages, PageSize(16)); }, cat("got ", pages, " pages"));
  expect_refused([] { PagePool(1 << 27, PageSize(16)); }, "2147483648 token slots");
  expect_refused([] { PagePool(1 << 30, PageSize(128)); }, "1073741824 pages of 128 tokens");
}

TEST(PagePool, AuditFindsEachKindOfBrokenBook) {
  const auto audit = [](std::vector<int32_t> references, std::vector<PageId> free) {
    return [=] { audit_books(references, free); };
  };
  EXPECT_NO_THROW(audit({1, 0, 2, 0}, {{3}, {1}})());
  expect_refused(audit({1, 0, 2, 0}, {{3}}), "page 1 has no references and is not in the free list");
  expect_refused(audit({1, 0, 2, 0}, {{3}, {1}, {3}}), "page 3 is in the free list twice");
  expect_refused(audit({1, 0, 2, 0}, {{3}, {1}, {2}}), "page 2 is in the free list with 2 references");
  expect_refused(audit({1, 0, 2, 0}, {{3}, {1}, {4}}), "page 4, outside the pool of 4 pages");
  expect_refused(audit({1, 0, -2, 0}, {{3}, {1}}), "page 2 has -2 references");
  expect_refused(audit({2, 0, 2, 0}, {{3}, {1}}), "the reserved page has 2 references");
}

// The model is a map from live pages to counts; the pool must agree with it after every action.
TEST(PagePool, AgreesWithAModelOnARandomWalk) {
  constexpr int32_t kPages = 40;
  PagePool pool(kPages, PageSize(32));
  std::map<PageId, int32_t> live;
  std::mt19937 random(20240607);
  const auto below = [&](size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random); };
  for (int action = 0; action < 20000; ++action) {
    const size_t kind = below(3);
    if (kind == 0) {
      std::vector<PageId> taken(below(6));
      const bool fits = taken.size() <= kPages - 1 - live.size();
      ASSERT_EQ(pool.allocate(taken), fits);
      for (size_t i = 0; fits && i < taken.size(); ++i) ASSERT_TRUE(live.emplace(taken[i], 1).second);
    } else {
      const PageId page{static_cast<int32_t>(1 + below(kPages - 1))};
      const auto entry = live.find(page);
      const auto act = [&] { kind == 1 ? pool.retain(page) : pool.release(page); };
      if (entry == live.end()) {
        ASSERT_THROW(act(), CheckError);
      } else {
        act();
        entry->second += kind == 1 ? 1 : -1;
        if (entry->second == 0) live.erase(entry);
      }
    }
    ASSERT_EQ(pool.used_pages(), std::ssize(live));
    if (action % 100 == 0) pool.audit();
  }
  for (const auto& [page, count] : live) EXPECT_EQ(pool.references(page), count);
  pool.audit();
}

}  // namespace
}  // namespace quire::kv
