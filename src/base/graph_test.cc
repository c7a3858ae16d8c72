#include "base/graph.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/exec.h"
#include "base/testing/expect_refused.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Counts every allocation of the program, to prove that a replay makes none. Not inlined: the compiler would see
// free() meet what it knows as new, and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace quire {
namespace {

// Writes value to the log's next place.
struct Put {
  int* log;
  int* used;
  int value;
};
void put(const Put& params, Exec&) { params.log[(*params.used)++] = params.value; }

struct Doubled {
  const int* from;
  int* to;
};
void double_all(const Doubled& params, Exec& exec) {
  exec.parallel(4, [&](int64_t item, int) { params.to[item] = 2 * params.from[item]; });
}

struct Log {
  int values[64] = {};
  int used = 0;
  std::vector<int> seen() const { return {values, values + used}; }
};

TEST(Graph, CaptureRecordsAndDoesNotRun) {
  Exec exec(ExecOptions{.threads = 1});
  Log log;
  Graph graph;
  exec.begin_capture(graph);
  EXPECT_TRUE(exec.capturing());
  exec.launch(put, Put{log.values, &log.used, 1});
  exec.end_capture();
  EXPECT_FALSE(exec.capturing());
  EXPECT_EQ(graph.size(), 1);
  EXPECT_EQ(log.used, 0);
  exec.launch(put, Put{log.values, &log.used, 9});
  EXPECT_EQ(log.seen(), std::vector<int>{9});
  EXPECT_EQ(graph.size(), 1);
}

TEST(Graph, ReplayRunsInOrderWithTheParametersOfTheCapture) {
  Exec exec(ExecOptions{.threads = 1});
  Log log;
  Graph graph;
  exec.begin_capture(graph);
  Put params{log.values, &log.used, 0};
  for (int i = 0; i < 3; ++i) {
    params.value = 10 + i;
    exec.launch(put, params);
  }
  params = {};  // the graph has copies
  exec.end_capture();
  graph.replay(exec);
  graph.replay(exec);
  EXPECT_EQ(log.seen(), (std::vector<int>{10, 11, 12, 10, 11, 12}));
}

TEST(Graph, ParametersSurviveGrowthAndMoving) {
  struct alignas(64) Large {
    int* sum;
    int value;
    char rest[900];
  };
  Exec exec(ExecOptions{.threads = 1});
  int sum = 0;
  Graph graph;
  exec.begin_capture(graph);
  constexpr int kOps = 1000;
  for (int i = 0; i < kOps; ++i)
    exec.launch<Large>(
        [](const Large& p, Exec&) {
          EXPECT_EQ(reinterpret_cast<uintptr_t>(&p) % alignof(Large), 0u);
          *p.sum += p.value + p.rest[899];
        },
        Large{&sum, i, {}});
  exec.end_capture();
  Graph moved(std::move(graph));
  moved.replay(exec);
  EXPECT_EQ(sum, kOps * (kOps - 1) / 2);

  Log log;
  exec.begin_capture(graph);  // NOLINT(bugprone-use-after-move): a moved-from graph is an empty one
  exec.launch(put, Put{log.values, &log.used, 5});
  exec.end_capture();
  graph.replay(exec);
  EXPECT_EQ(log.seen(), std::vector<int>{5});
}

TEST(Graph, CapturesDoNotNest) {
  Exec exec(ExecOptions{.threads = 1});
  Graph graph, other;
  EXPECT_THROW(exec.end_capture(), CheckError);
  exec.begin_capture(graph);
  EXPECT_THROW(exec.begin_capture(other), CheckError);
  exec.end_capture();
}

TEST(Graph, OfAGpuIsRefusedWithoutAStream) {
  Exec exec(ExecOptions{.threads = 1});
  Graph graph;
  graph.set_captured(std::make_unique<cuda::CapturedGraph>(nullptr));
  expect_refused([&] { graph.replay(exec); }, "a graph of the GPU is replayed by an Exec with a stream");
}

TEST(Graph, OfTheTeamIsRefusedWithAStream) {
  Exec exec(ExecOptions{.threads = 1});
  alignas(cuda::Stream) std::byte nowhere[sizeof(cuda::Stream)];  // no stream: whoever used it would fail
  Exec on_gpu(ExecOptions{.threads = 1, .stream = reinterpret_cast<cuda::Stream*>(nowhere)});
  Log log;
  Graph graph;
  EXPECT_NO_THROW(graph.replay(on_gpu)) << "it does nothing";
  exec.begin_capture(graph);
  exec.launch(put, Put{log.values, &log.used, 1});
  exec.end_capture();
  expect_refused([&] { graph.replay(on_gpu); }, "a graph of 1 operations of the processor");
  EXPECT_EQ(log.used, 0);
}

TEST(GraphSet, ReplaysTheSmallestSizeThatFits) {
  Exec exec(ExecOptions{.threads = 1});
  Log log;
  std::vector<int> order;
  GraphSet set;
  const int sizes[] = {4, 1, 8};
  set.capture(exec, sizes, [&](int size) {
    order.push_back(size);
    exec.launch(put, Put{log.values, &log.used, size});
  });
  EXPECT_EQ(order, (std::vector<int>{8, 4, 1}));
  EXPECT_EQ(log.used, 0);
  const int expected[] = {1, 1, 4, 4, 4, 8, 8, 8, 8};
  for (int live = 0; live <= 8; ++live) {
    EXPECT_EQ(set.padded_size(live), expected[live]);
    EXPECT_EQ(set.replay(exec, live), expected[live]);
    EXPECT_EQ(log.seen().back(), expected[live]);
  }
}

TEST(GraphSet, TooLargeABatchNamesBothNumbers) {
  Exec exec(ExecOptions{.threads = 1});
  GraphSet set;
  EXPECT_THROW(set.padded_size(1), CheckError);
  const int sizes[] = {2, 32};
  set.capture(exec, sizes, [](int) {});
  try {
    set.replay(exec, 57);
    ADD_FAILURE();
  } catch (const CheckError& error) {
    EXPECT_STREQ(error.what(), "a batch of 57 is larger than the largest captured size, 32");
  }
  EXPECT_THROW(set.replay(exec, -1), CheckError);
}

TEST(GraphSet, RefusesSizesThatMakeNoSense) {
  Exec exec(ExecOptions{.threads = 1});
  GraphSet set;
  const int zero[] = {0, 1}, twice[] = {4, 2, 4};
  EXPECT_THROW(set.capture(exec, {}, [](int) {}), CheckError);
  EXPECT_THROW(set.capture(exec, zero, [](int) {}), CheckError);
  EXPECT_THROW(set.capture(exec, twice, [](int) {}), CheckError);
}

TEST(GraphSet, AStepThatThrowsEndsTheCaptureAndKeepsTheOldGraphs) {
  Exec exec(ExecOptions{.threads = 1});
  GraphSet set;
  const int small[] = {2}, large[] = {16};
  set.capture(exec, small, [](int) {});
  EXPECT_THROW(set.capture(exec, large, [](int) { throw CheckError("no"); }), CheckError);
  EXPECT_FALSE(exec.capturing());
  EXPECT_EQ(set.padded_size(1), 2);
}

TEST(GraphSet, ReplayAllocatesNothing) {
  Exec exec(ExecOptions{.threads = 2});
  int from[4] = {1, 2, 3, 4}, to[4] = {};
  GraphSet set;
  const int sizes[] = {1, 4};
  set.capture(exec, sizes, [&](int) {
    for (int i = 0; i < 5; ++i) exec.launch(double_all, Doubled{from, to});
  });
  const int64_t before = allocations;
  ASSERT_GT(before, 0) << "the counter does not count";
  for (int step = 0; step < 100; ++step) {
    from[0] = step;  // what the recorded addresses point to may change
    set.replay(exec, 3);
    if (to[0] != 2 * step) break;
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(to[0], 198);
  EXPECT_EQ(to[3], 8);
}

}  // namespace
}  // namespace quire
