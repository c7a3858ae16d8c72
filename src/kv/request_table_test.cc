#include "kv/request_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/testing/expect_refused.h"

namespace quire::kv {
namespace {

constexpr int32_t kPageSizes[] = {1, 16, 32, 64, 128};

std::vector<PageId> copy_of(std::span<const PageId> pages) { return {pages.begin(), pages.end()}; }

TEST(RequestTable, HandsOutEachRowOnceAndNeverRowZero) {
  PagePool pool(4, PageSize(16));
  RequestTable table(pool, 4, 64);
  std::vector<RequestRow> rows = {table.open(), table.open(), table.open()};
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, (std::vector<RequestRow>{{1}, {2}, {3}}));
  EXPECT_EQ(table.open_rows(), 3);
  expect_refused([&] { table.open(); }, "all 3 request rows are open");
  table.close({2});
  EXPECT_EQ(table.open_rows(), 2);
  EXPECT_EQ(table.open(), RequestRow{2});
}

TEST(RequestTable, ReservesOnlyWhatIsMissing) {
  PagePool pool(20, PageSize(16));
  RequestTable table(pool, 3, 160);
  const RequestRow row = table.open();
  ASSERT_TRUE(table.reserve(row, {17}));
  const std::vector<PageId> first = copy_of(table.pages(row));
  EXPECT_EQ(first.size(), 2u);
  ASSERT_TRUE(table.reserve(row, {32}));
  ASSERT_TRUE(table.reserve(row, {5}));
  EXPECT_EQ(copy_of(table.pages(row)), first);
  ASSERT_TRUE(table.reserve(row, {33}));
  EXPECT_EQ(table.pages(row).size(), 3u);
  EXPECT_EQ(copy_of(table.pages(row).first(2)), first);
  EXPECT_EQ(pool.used_pages(), 3);
}

TEST(RequestTable, ExhaustionChangesNothing) {
  PagePool pool(5, PageSize(16));
  RequestTable table(pool, 3, 160);
  const RequestRow row = table.open();
  ASSERT_TRUE(table.reserve(row, {32}));
  const std::vector<PageId> before = copy_of(table.pages(row));
  EXPECT_FALSE(table.reserve(row, {81}));
  EXPECT_EQ(copy_of(table.pages(row)), before);
  EXPECT_EQ(pool.used_pages(), 2);
  EXPECT_TRUE(table.reserve(row, {64}));
  pool.audit();
}

TEST(RequestTable, RefusesMoreTokensThanARowHolds) {
  PagePool pool(50, PageSize(16));
  RequestTable table(pool, 3, 100);  // 7 pages, so up to 112 tokens
  const RequestRow row = table.open();
  ASSERT_TRUE(table.reserve(row, {112}));
  expect_refused([&] { (void)table.reserve(row, {113}); }, "113 tokens need 8 pages of 16");
  expect_refused([&] { (void)table.reserve(row, {-3}); }, "-3 tokens");
  const RequestRow other = table.open();
  ASSERT_TRUE(table.reserve(other, {1}));
  expect_refused([&] { table.append_shared(other, table.pages(row)); }, "has 1 of 7 pages and cannot take 7 more");
  EXPECT_EQ(table.pages(other).size(), 1u);
  EXPECT_EQ(pool.references(table.pages(row)[0]), 1);
}

TEST(RequestTable, TruncateReleasesThePagesPastTheTokens) {
  PagePool pool(20, PageSize(16));
  RequestTable table(pool, 3, 160);
  const RequestRow row = table.open();
  ASSERT_TRUE(table.reserve(row, {80}));
  const std::vector<PageId> before = copy_of(table.pages(row));
  table.truncate(row, {33});
  EXPECT_EQ(copy_of(table.pages(row)), std::vector<PageId>(before.begin(), before.begin() + 3));
  EXPECT_EQ(pool.references(before[3]), 0);
  expect_refused([&] { table.truncate(row, {49}); }, "too few to be cut to 49 tokens");
  table.truncate(row, {0});
  EXPECT_TRUE(table.pages(row).empty());
  EXPECT_EQ(pool.used_pages(), 0);
}

TEST(RequestTable, SharedPagesOutliveTheirFirstRow) {
  PagePool pool(20, PageSize(16));
  RequestTable table(pool, 4, 160);
  const RequestRow first = table.open();
  ASSERT_TRUE(table.reserve(first, {48}));
  const std::vector<PageId> shared = copy_of(table.pages(first));
  const RequestRow second = table.open();
  table.append_shared(second, shared);
  EXPECT_EQ(copy_of(table.pages(second)), shared);
  for (const PageId page : shared) EXPECT_EQ(pool.references(page), 2);
  table.close(first);
  for (const PageId page : shared) EXPECT_EQ(pool.references(page), 1);
  table.close(second);
  EXPECT_EQ(pool.used_pages(), 0);
}

TEST(RequestTable, AppendSharedTakesAllPagesOrNone) {
  PagePool pool(20, PageSize(16));
  RequestTable table(pool, 3, 160);
  const RequestRow first = table.open();
  ASSERT_TRUE(table.reserve(first, {16}));
  const PageId live = table.pages(first)[0];
  const RequestRow second = table.open();
  for (const PageId bad : {PageId{15}, PageId{20}, kReservedPage}) {
    expect_refused([&] { table.append_shared(second, std::vector<PageId>{live, bad}); }, cat("page ", bad, " is "));
    EXPECT_TRUE(table.pages(second).empty());
    EXPECT_EQ(pool.references(live), 1);
  }
}

// A request of 40 tokens forks: both share two full pages, and the half-filled third is copied before either writes.
TEST(RequestTable, ForkCopiesThePartlyFilledPageOnWrite) {
  PagePool pool(20, PageSize(16));
  RequestTable table(pool, 4, 160);
  const RequestRow parent = table.open();
  ASSERT_TRUE(table.reserve(parent, {40}));
  const std::vector<PageId> original = copy_of(table.pages(parent));
  const RequestRow child = table.open();
  table.append_shared(child, original);
  PageId fresh{};
  ASSERT_TRUE(pool.allocate({&fresh, 1}));
  table.replace_page(child, 2, fresh);

  EXPECT_EQ(copy_of(table.pages(parent)), original);
  EXPECT_EQ(copy_of(table.pages(child)), (std::vector<PageId>{original[0], original[1], fresh}));
  EXPECT_EQ(pool.references(original[1]), 2);
  EXPECT_EQ(pool.references(original[2]), 1);
  EXPECT_EQ(pool.references(fresh), 1);
  EXPECT_EQ(table.slot(child, 31), table.slot(parent, 31));
  EXPECT_NE(table.slot(child, 32), table.slot(parent, 32));

  table.close(parent);
  EXPECT_EQ(pool.references(original[2]), 0);
  table.close(child);
  EXPECT_EQ(pool.used_pages(), 0);
  pool.audit();
}

TEST(RequestTable, ReplacePageRefusesBadIndicesAndDeadPages) {
  PagePool pool(20, PageSize(16));
  RequestTable table(pool, 3, 160);
  const RequestRow row = table.open();
  ASSERT_TRUE(table.reserve(row, {32}));
  const std::vector<PageId> before = copy_of(table.pages(row));
  expect_refused([&] { table.replace_page(row, 2, before[0]); }, "none at index 2");
  expect_refused([&] { table.replace_page(row, -1, before[0]); }, "none at index -1");
  expect_refused([&] { table.replace_page(row, 0, {13}); }, "page 13 is free");
  EXPECT_EQ(copy_of(table.pages(row)), before);
  EXPECT_EQ(pool.used_pages(), 2);
}

TEST(RequestTable, SlotsFollowThePages) {
  for (const int32_t tokens : kPageSizes) {
    SCOPED_TRACE(tokens);
    const PageSize page_size(tokens);
    PagePool pool(12, page_size);
    RequestTable table(pool, 3, 8 * tokens);
    const RequestRow other = table.open();
    const RequestRow row = table.open();
    ASSERT_TRUE(table.reserve(row, {2 * tokens}));
    ASSERT_TRUE(table.reserve(other, {tokens}));  // so that the row's pages are not consecutive
    ASSERT_TRUE(table.reserve(row, {4 * tokens}));
    for (int32_t position = 0; position < 4 * tokens; ++position) {
      const PageId page = table.pages(row)[position / tokens];
      EXPECT_EQ(table.slot(row, position).value, page.value * tokens + position % tokens);
    }
    expect_refused([&] { table.slot(row, 4 * tokens); }, cat("position ", 4 * tokens));
    expect_refused([&] { table.slot(row, -1); }, "position -1");
  }
}

TEST(RequestTable, GivesBackPagesFromTheFront) {
  PagePool pool(20, PageSize(16));
  RequestTable table(pool, 3, 160);
  const RequestRow row = table.open();
  ASSERT_TRUE(table.reserve(row, {80}));
  const std::vector<PageId> before = copy_of(table.pages(row));
  table.release_pages(row, 0, 2);
  EXPECT_EQ(table.first_page(row), 2);
  EXPECT_EQ(pool.used_pages(), 3);
  EXPECT_EQ(table.pages(row)[1], kReservedPage);
  EXPECT_EQ(table.pages(row)[2], before[2]);
  expect_refused([&] { table.slot(row, 31); }, "position 31");
  EXPECT_EQ(table.slot(row, 32), (TokenSlot{before[2].value * 16}));
  expect_refused([&] { table.release_pages(row, 0, 3); }, "not [0, 3)");
  expect_refused([&] { table.release_pages(row, 3, 4); }, "not [3, 4)");
  expect_refused([&] { table.release_pages(row, 2, 6); }, "not [2, 6)");
  expect_refused([&] { table.replace_page(row, 1, before[4]); }, "none at index 1");
  expect_refused([&] { table.truncate(row, {16}); }, "cannot be cut to 16 tokens");
  EXPECT_EQ(pool.used_pages(), 3);

  table.truncate(row, {48});
  EXPECT_EQ(pool.used_pages(), 1);
  table.truncate(row, {0});
  EXPECT_EQ(pool.used_pages(), 0);
  EXPECT_EQ(table.first_page(row), 0);
  ASSERT_TRUE(table.reserve(row, {16}));
  table.close(row);
  EXPECT_EQ(pool.used_pages(), 0);
  pool.audit();
}

TEST(RequestTable, RefusesRowsThatAreNotOpen) {
  PagePool pool(4, PageSize(16));
  RequestTable table(pool, 3, 64);
  const RequestRow row = table.open();
  table.close(row);
  expect_refused([&] { table.close(row); }, cat("request row ", row, " is not open"));
  expect_refused([&] { (void)table.reserve({0}, {1}); }, "request row 0 is not open");
  expect_refused([&] { table.pages({3}); }, "request row 3 is outside the table of 3 rows");
  expect_refused([&] { table.slot({-1}, 0); }, "request row -1 is outside");
}

TEST(RequestTable, RefusesSizesThatMakeNoSense) {
  PagePool pool(4, PageSize(16));
  expect_refused([&] { RequestTable(pool, 1, 64); }, "got 1 rows");
  expect_refused([&] { RequestTable(pool, 3, 0); }, "got 0");
}

TEST(RequestTable, ReturnsEveryPageWhenItDies) {
  PagePool pool(20, PageSize(16));
  {
    RequestTable table(pool, 4, 160);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(table.reserve(table.open(), {33}));
    EXPECT_EQ(pool.used_pages(), 9);
  }
  EXPECT_EQ(pool.used_pages(), 0);
  pool.audit();
}

TEST(RequestTable, ViewShowsRowsInPlace) {
  PagePool pool(20, PageSize(32));
  RequestTable table(pool, 4, 100);
  const RequestRow row = table.open();
  const TableView view = table.view();
  EXPECT_EQ(view.rows, 4);
  EXPECT_EQ(view.width, 4);
  EXPECT_EQ(view.page_size, PageSize(32));
  EXPECT_EQ(view.pool_pages, 20);
  ASSERT_TRUE(table.reserve(row, {100}));
  for (int32_t index = 0; index < 4; ++index)
    EXPECT_EQ(view.pages[row.value * view.stride + index], table.pages(row)[index]);
}

// Every page's count must equal the number of rows that hold it, whatever happened before.
TEST(RequestTable, CountsStayRightOnARandomWalk) {
  constexpr int32_t kRows = 8;
  PagePool pool(60, PageSize(16));
  RequestTable table(pool, kRows, 320);
  std::vector<RequestRow> open;
  std::mt19937 random(7);
  const auto below = [&](int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(random); };
  for (int action = 0; action < 5000; ++action) {
    if (open.empty() || (below(4) == 0 && table.open_rows() < kRows - 1)) open.push_back(table.open());
    const size_t chosen = below(static_cast<int32_t>(open.size()));
    const RequestRow row = open[chosen];
    const int32_t held = static_cast<int32_t>(table.pages(row).size());
    switch (below(5)) {
      case 0:
        (void)table.reserve(row, {below(321)});
        break;
      case 1:
        table.truncate(row, {below(held * 16 + 1)});
        break;
      case 2:
        table.truncate(row, {0});
        table.append_shared(row, table.pages(open[below(static_cast<int32_t>(open.size()))]));
        break;
      case 3: {
        PageId fresh{};
        if (held > 0 && pool.allocate({&fresh, 1})) table.replace_page(row, below(held), fresh);
        break;
      }
      case 4:
        table.close(row);
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(chosen));
        break;
    }
    std::vector<int32_t> expected(pool.pages(), 0);
    expected[kReservedPage.value] = 1;
    for (const RequestRow each : open)
      for (const PageId page : table.pages(each)) ++expected[page.value];
    for (int32_t page = 0; page < pool.pages(); ++page) ASSERT_EQ(pool.references({page}), expected[page]);
  }
  pool.audit();
}

}  // namespace
}  // namespace quire::kv
