#include "base/exec.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/testing/expect_refused.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

Exec make(int threads) { return Exec(ExecOptions{.threads = threads}); }

class ExecTeam : public testing::TestWithParam<int> {};

TEST_P(ExecTeam, EveryItemRunsExactlyOnce) {
  Exec exec = make(GetParam());
  ASSERT_EQ(exec.threads(), GetParam());
  for (int64_t items : {0, 1, 2, 3, 4, 5, 7, 16, 100, 1001, 20'000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(items));
    std::atomic<bool> strange_thread{false};
    exec.parallel(items, [&](int64_t item, int thread) {
      runs[static_cast<size_t>(item)].fetch_add(1, std::memory_order_relaxed);
      if (thread < 0 || thread >= exec.threads()) strange_thread = true;
    });
    for (int64_t i = 0; i < items; ++i) ASSERT_EQ(runs[static_cast<size_t>(i)], 1) << "item " << i << " of " << items;
    EXPECT_FALSE(strange_thread);
  }
}

// The results are plain memory: whatever the workers wrote must be visible to the caller after each join, also when
// jobs follow each other closely and workers arrive late for some of them.
TEST_P(ExecTeam, ManyShortJobsInARow) {
  Exec exec = make(GetParam());
  std::vector<int64_t> cells(8);
  constexpr int kJobs = 20'000;
  for (int job = 0; job < kJobs; ++job) {
    const auto items = static_cast<int64_t>(1 + job % cells.size());
    exec.parallel(items, [&](int64_t item, int) { cells[static_cast<size_t>(item)] += job; });
  }
  for (size_t cell = 0; cell < cells.size(); ++cell) {
    int64_t expected = 0;
    for (int job = 0; job < kJobs; ++job)
      if (static_cast<size_t>(job) % cells.size() >= cell) expected += job;
    EXPECT_EQ(cells[cell], expected) << cell;
  }
}

TEST_P(ExecTeam, ItemsAreHandedOutInAscendingOrder) {
  Exec exec = make(GetParam());
  std::vector<int64_t> last(static_cast<size_t>(exec.threads()), -1);
  std::atomic<bool> ascending{true};
  exec.parallel(5000, [&](int64_t item, int thread) {
    int64_t& mine = last[static_cast<size_t>(thread)];
    if (item <= mine) ascending = false;
    mine = item;
  });
  EXPECT_TRUE(ascending);
}

TEST_P(ExecTeam, WorksAgainAfterTheWorkersSlept) {
  Exec exec = make(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(5ms);
    std::atomic<int64_t> sum{0};
    exec.parallel(100, [&](int64_t item, int) { sum += item; });
    EXPECT_EQ(sum, 4950);
  }
}

TEST_P(ExecTeam, ScratchIsPrivateAndAligned) {
  Exec exec(ExecOptions{.threads = GetParam(), .scratch_bytes = 1000});
  EXPECT_EQ(exec.scratch_bytes(), 1000u);
  std::set<std::byte*> blocks;
  for (int thread = 0; thread < exec.threads(); ++thread) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(exec.scratch(thread)) % 64, 0u);
    std::memset(exec.scratch(thread), thread, exec.scratch_bytes());
    blocks.insert(exec.scratch(thread));
  }
  EXPECT_EQ(blocks.size(), static_cast<size_t>(exec.threads()));
  for (int thread = 0; thread < exec.threads(); ++thread)
    EXPECT_EQ(exec.scratch(thread)[999], static_cast<std::byte>(thread));
}

INSTANTIATE_TEST_SUITE_P(Threads, ExecTeam, testing::Values(1, 2, 5),
                         [](const auto& test) { return std::to_string(test.param); });

// Every item waits for all of them to have begun, which takes as many threads as there are items.
bool all_meet(Exec& exec, int items) {
  std::atomic<int> present{0};
  std::atomic<bool> late{false};
  exec.parallel(items, [&](int64_t, int) {
    ++present;
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (present < items && !late) {
      if (std::chrono::steady_clock::now() > end) late = true;
      std::this_thread::yield();
    }
  });
  return !late;
}

TEST(Exec, EveryWorkerTakesPart) {
  Exec exec = make(5);
  for (int round = 0; round < 100; ++round) ASSERT_TRUE(all_meet(exec, 5)) << round;
}

TEST(Exec, SleepingWorkersAreWoken) {
  Exec exec = make(5);
  for (int round = 0; round < 10; ++round) {
    std::this_thread::sleep_for(5ms);
    ASSERT_TRUE(all_meet(exec, 5)) << round;
  }
}

TEST(Exec, IdleWorkersUseNoProcessorTime) {
  Exec exec = make(5);
  exec.parallel(100, [](int64_t, int) {});
  std::this_thread::sleep_for(20ms);  // they fall asleep
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(200ms);
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(used, 0.02) << "seconds of processor time in 0.2 s of idling";
}

TEST(Exec, DefaultsToTheUsableCores) {
  const Exec exec;
  EXPECT_EQ(exec.threads(), usable_cores());
  EXPECT_GE(exec.threads(), 1);
  EXPECT_LE(exec.threads(), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(exec.isa(), best_isa());
}

TEST(Exec, RefusesANegativeTeam) { EXPECT_THROW(make(-1), CheckError); }

// An operation of the team would run while the stream still works on what was given to it before.
TEST(Exec, WithAStreamRefusesOperationsOfTheTeam) {
  alignas(cuda::Stream) std::byte nowhere[sizeof(cuda::Stream)];  // no stream: whoever used it would fail
  Exec exec(ExecOptions{.threads = 1, .stream = reinterpret_cast<cuda::Stream*>(nowhere)});
  bool has_run = false;
  const auto run = [](bool* const& ran, Exec&) { *ran = true; };
  expect_refused([&] { exec.launch<bool*>(run, &has_run); }, "was given to an Exec with a stream");
  EXPECT_FALSE(has_run);
}

TEST(Exec, RefusesAnAbsentInstructionSet) {
  if (best_isa() == Isa::amx) GTEST_SKIP() << "all instruction sets are present";
  EXPECT_THROW(Exec(ExecOptions{.threads = 1, .isa = Isa::amx}), CheckError);
}

}  // namespace
}  // namespace quire
