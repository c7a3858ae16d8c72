#include "kv/page_table_journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <ostream>
#include <random>
#include <vector>

#include "base/cuda.h"
#include "base/testing/expect_refused.h"
#include "kv/request_table.h"

namespace quire::kv {
namespace {

constexpr int32_t kTokens = 16;  // of a page

std::vector<PageId> ids_of(std::span<const PageId> pages) { return {pages.begin(), pages.end()}; }

// A step's part of the journal, at fixed addresses that a GPU may read.
class Changes {
 public:
  Changes(int32_t runs, int32_t pages, Place place = Place::host)
      : runs_(runs),
        pages_(pages),
        count_memory_(sizeof(int32_t), place),
        run_memory_(runs * sizeof(PageRun), place),
        page_memory_(pages * sizeof(PageId), place) {}

  JournalSpace space() const {
    return {.count = reinterpret_cast<int32_t*>(count_memory_.data()),
            .runs = {reinterpret_cast<PageRun*>(run_memory_.data()), static_cast<size_t>(runs_)},
            .pages = {reinterpret_cast<PageId*>(page_memory_.data()), static_cast<size_t>(pages_)}};
  }
  int32_t count() const { return *space().count; }
  const PageRun& run(int32_t i) const { return space().runs[i]; }
  std::vector<PageId> pages_of(int32_t i) const { return ids_of(space().pages.subspan(run(i).begin, run(i).count)); }
  void apply(const PageTableMirror& mirror, Exec& exec) const {
    const JournalSpace from = space();
    apply_journal({.count = from.count,
                   .runs = from.runs.data(),
                   .pages = from.pages.data(),
                   .most_runs = runs_,
                   .mirror = mirror.pages(),
                   .stride = mirror.view().stride},
                  exec);
  }

 private:
  int32_t runs_, pages_;
  Buffer count_memory_, run_memory_, page_memory_;
};

class PageTableJournalTest : public ::testing::Test {
 protected:
  PageTableJournalTest() { table_.keep_journal(); }

  std::vector<PageId> entries(RequestRow row, int32_t first, int32_t last) const {
    return ids_of(table_.pages(row).subspan(first, last - first));
  }
  void expect_run(int32_t i, RequestRow row, int32_t first, int32_t last) const {
    EXPECT_EQ(changes_.run(i).row, row);
    EXPECT_EQ(changes_.run(i).first, first);
    EXPECT_EQ(changes_.run(i).count, last - first);
    EXPECT_EQ(changes_.pages_of(i), entries(row, first, last));
  }

  PagePool pool_{60, PageSize(kTokens)};
  RequestTable table_{pool_, 6, 20 * kTokens};
  Changes changes_{4, 12};
};

TEST_F(PageTableJournalTest, TellsEachChangeOnceAndARowsChangesTogether) {
  const RequestRow a = table_.open(), b = table_.open();
  ASSERT_TRUE(table_.reserve(a, {2 * kTokens}));
  table_.append_shared(b, table_.pages(a));
  ASSERT_TRUE(table_.reserve(a, {3 * kTokens}));
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 2);
  expect_run(0, a, 0, 3);
  expect_run(1, b, 0, 2);

  ASSERT_TRUE(table_.take_changes(changes_.space()));
  EXPECT_EQ(changes_.count(), 0);

  ASSERT_TRUE(table_.reserve(a, {5 * kTokens}));
  PageId fresh{};
  ASSERT_TRUE(pool_.allocate({&fresh, 1}));
  table_.replace_page(a, 2, fresh);
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 1);
  expect_run(0, a, 2, 5);
}

TEST_F(PageTableJournalTest, WhatARowNoLongerHasIsNotTold) {
  const RequestRow cut = table_.open(), closed = table_.open(), front = table_.open();
  for (const RequestRow row : {cut, closed, front}) ASSERT_TRUE(table_.reserve(row, {4 * kTokens}));
  table_.truncate(cut, {1});
  table_.close(closed);
  table_.release_pages(front, 0, 2);
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 2);
  expect_run(0, cut, 0, 1);
  expect_run(1, front, 2, 4);
}

TEST_F(PageTableJournalTest, ARowThatIsGivenAgainHasItsNewPages) {
  const RequestRow row = table_.open();
  ASSERT_TRUE(table_.reserve(row, {4 * kTokens}));
  table_.close(row);
  ASSERT_EQ(table_.open(), row);
  ASSERT_TRUE(table_.reserve(row, {2 * kTokens}));
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 1);
  expect_run(0, row, 0, 2);
}

TEST_F(PageTableJournalTest, WhatExceedsTheRoomComesWithTheNextCall) {
  const RequestRow a = table_.open(), b = table_.open();
  ASSERT_TRUE(table_.reserve(a, {20 * kTokens}));
  ASSERT_TRUE(table_.reserve(b, {5 * kTokens}));
  ASSERT_FALSE(table_.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 1);
  expect_run(0, a, 0, 12);
  ASSERT_FALSE(table_.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 2);
  expect_run(0, a, 12, 20);
  expect_run(1, b, 0, 4);
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 1);
  expect_run(0, b, 4, 5);
}

TEST_F(PageTableJournalTest, MoreRowsThanRunsAreForTheNextCall) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(table_.reserve(table_.open(), {1}));
  ASSERT_FALSE(table_.take_changes(changes_.space()));
  EXPECT_EQ(changes_.count(), 4);
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  EXPECT_EQ(changes_.count(), 1);
}

TEST_F(PageTableJournalTest, BeginsWithWhatTheTableHolds) {
  RequestTable table(pool_, 3, 20 * kTokens);
  const RequestRow row = table.open();
  ASSERT_TRUE(table.reserve(row, {3 * kTokens}));
  expect_refused([&] { (void)table.take_changes(changes_.space()); }, "keeps no journal");
  table.keep_journal();
  ASSERT_TRUE(table.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 1);
  EXPECT_EQ(changes_.pages_of(0), ids_of(table.pages(row)));
  expect_refused([&] { (void)table.take_changes(Changes(0, 0).space()); }, "no room");
}

TEST_F(PageTableJournalTest, CalledAgainItBeginsAgain) {
  const RequestRow taken = table_.open(), pending = table_.open();
  ASSERT_TRUE(table_.reserve(taken, {3 * kTokens}));
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  ASSERT_TRUE(table_.reserve(pending, {2 * kTokens}));
  table_.keep_journal();  // as for another mirror, which has nothing yet
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  ASSERT_EQ(changes_.count(), 2);
  expect_run(0, taken, 0, 3);
  expect_run(1, pending, 0, 2);
  ASSERT_TRUE(table_.take_changes(changes_.space()));
  EXPECT_EQ(changes_.count(), 0);
}

// --- the mirror, with steps in flight

struct Machine {
  const char* name;
  Place place;
};
void PrintTo(const Machine& machine, std::ostream* out) { *out << machine.name; }

// What a step saw of an open row when it was launched.
struct SeenRow {
  RequestRow row;
  int32_t first;
  std::vector<PageId> pages;  // from `first` on
};

struct LaunchedStep {
  std::vector<Changes> changes;  // those of steps of nobody, sent ahead, and its own
  std::vector<SeenRow> rows;
};

class MirrorWalk : public ::testing::TestWithParam<Machine> {
 protected:
  static constexpr int32_t kRows = 8, kWidth = 20;

  void SetUp() override {
    if (is_gpu() && quire::cuda::devices() == 0)
      GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    table_.keep_journal();
    mirror_.emplace(table_.view(), GetParam().place);
    std::memset(static_cast<void*>(mirror_->pages()), 0x7f, kRows * kWidth * sizeof(PageId));
  }

  bool is_gpu() const { return GetParam().place == Place::pinned; }
  Exec& exec() {
    if (!is_gpu()) return team_;
    static quire::cuda::Stream stream;
    static Exec exec({.threads = 1, .stream = &stream});
    return exec;
  }
  int32_t below(int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(random_); }
  RequestRow any() { return open_[below(static_cast<int32_t>(open_.size()))]; }

  // One random thing that happens to a table.
  void change() {
    if (open_.empty() || (below(5) == 0 && table_.open_rows() < kRows - 1)) open_.push_back(table_.open());
    const RequestRow row = any();
    const auto held = static_cast<int32_t>(table_.pages(row).size());
    const int32_t first = table_.first_page(row);
    switch (below(7)) {
      case 0:
      case 1:
        (void)table_.reserve(row, {below(kWidth * kTokens + 1)});
        break;
      case 2:
        table_.truncate(row, {(first + below(held - first + 1)) * kTokens});
        break;
      case 3:
        share(row);
        break;
      case 4: {
        PageId fresh{};
        if (held > first && pool_.allocate({&fresh, 1})) table_.replace_page(row, first + below(held - first), fresh);
        break;
      }
      case 5:
        table_.release_pages(row, first, first + below(held - first + 1));
        break;
      case 6:
        table_.close(row);
        std::erase(open_, row);
        break;
    }
  }
  void share(RequestRow row) {
    const RequestRow from = any();
    if (from == row || table_.first_page(from) > 0) return;
    table_.truncate(row, {0});
    table_.append_shared(row, table_.pages(from));
  }

  LaunchedStep launch() {
    LaunchedStep step;
    do step.changes.emplace_back(3, 7, GetParam().place);
    while (!table_.take_changes(step.changes.back().space()));
    for (const RequestRow row : open_) {
      const int32_t first = table_.first_page(row);
      step.rows.push_back({row, first, ids_of(table_.pages(row).subspan(first))});
    }
    return step;
  }
  void run(const LaunchedStep& step) {
    for (const Changes& changes : step.changes) changes.apply(*mirror_, exec());
    exec().wait();
    const TableView view = mirror_->view(), table = table_.view();
    for (const SeenRow& seen : step.rows) {
      const int64_t at = seen.row.value * view.stride + seen.first;
      const std::span<const PageId> mirrored(view.pages + at, seen.pages.size());
      ASSERT_EQ(ids_of(mirrored), seen.pages) << "row " << seen.row.value;
      changed_in_flight_ += !std::equal(mirrored.begin(), mirrored.end(), table.pages + at);
    }
    sent_ahead_ += step.changes.size() - 1;
  }

  Exec team_{{.threads = 1}};
  std::mt19937 random_{11};
  PagePool pool_{90, PageSize(kTokens)};
  RequestTable table_{pool_, kRows, kWidth* kTokens};
  std::optional<PageTableMirror> mirror_;
  std::vector<RequestRow> open_;
  size_t changed_in_flight_ = 0, sent_ahead_ = 0;
};

const auto kMachines = ::testing::Values(Machine{"cpu", Place::host}, Machine{"cuda", Place::pinned});
INSTANTIATE_TEST_SUITE_P(Machines, MirrorWalk, kMachines, [](const auto& test) { return test.param.name; });

// The device is up to three steps behind the host, and each finds the table as it was when the step was launched.
TEST_P(MirrorWalk, EveryStepSeesTheTableAsItWasAtItsLaunch) {
  const int steps = is_gpu() ? 500 : 3000;
  std::deque<LaunchedStep> in_flight;
  for (int step = 0; step < steps; ++step) {
    for (int32_t changes = below(6); changes > 0; --changes) change();
    in_flight.push_back(launch());
    for (const auto late = static_cast<size_t>(below(4)); in_flight.size() > late; in_flight.pop_front())
      ASSERT_NO_FATAL_FAILURE(run(in_flight.front())) << "step " << step;
  }
  EXPECT_GT(changed_in_flight_, 100u) << "the host's own table would have done";
  EXPECT_GT(sent_ahead_, 100u) << "the room was never too small";
}

// More runs than a block has threads, and more pages than it asks for ahead.
TEST_P(MirrorWalk, AStepMayBringThousandsOfPages) {
  constexpr int32_t kMany = 600, kEach = 7;
  PagePool pool(kMany * kEach + 1, PageSize(kTokens));
  RequestTable table(pool, kMany + 1, kWidth * kTokens);
  table.keep_journal();
  const PageTableMirror mirror(table.view(), GetParam().place);
  std::vector<RequestRow> rows;
  for (int32_t i = 0; i < kMany; ++i) {
    rows.push_back(table.open());
    ASSERT_TRUE(table.reserve(rows.back(), {kEach * kTokens}));
  }
  const Changes changes(kMany, kMany * kEach, GetParam().place);
  ASSERT_TRUE(table.take_changes(changes.space()));
  ASSERT_EQ(changes.count(), kMany);
  changes.apply(mirror, exec());
  exec().wait();
  for (const RequestRow row : rows)
    ASSERT_EQ(ids_of({mirror.pages() + row.value * mirror.view().stride, kEach}), ids_of(table.pages(row)));
}

}  // namespace
}  // namespace quire::kv
