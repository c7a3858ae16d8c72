#include "base/op_times.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/exec.h"

namespace quire {
namespace {

TEST(OpTimes, KindsAreNamesOfParameters) {
  EXPECT_EQ(kind_of_operation("quire::ops::MatmulArgs"), "Matmul");
  EXPECT_EQ(kind_of_operation("quire::ops::ByRow<quire::ops::(anonymous namespace)::QuantiseOp>"), "Quantise");
  EXPECT_EQ(kind_of_operation("Plain"), "Plain");
  EXPECT_EQ(kind_of_operation("a::Args"), "Args");
}

struct SleepArgs {
  int milliseconds;
};
struct NothingOp {};
void sleep_op(const SleepArgs& args, Exec&) {
  std::this_thread::sleep_for(std::chrono::milliseconds(args.milliseconds));
}
void nothing_op(const NothingOp&, Exec&) {}

TEST(OpTimes, CountsWhatRunsNowAndWhatIsReplayed) {
  Exec exec({.threads = 1});
  Graph graph;
  exec.begin_capture(graph);
  exec.launch(sleep_op, SleepArgs{2});
  exec.launch(nothing_op, NothingOp{});
  exec.end_capture();

  OpTimes times;
  exec.keep_times(&times);
  exec.launch(sleep_op, SleepArgs{3});
  graph.replay(exec);
  exec.keep_times(nullptr);
  graph.replay(exec);

  const auto entries = times.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].kind, "Sleep");
  EXPECT_EQ(entries[0].calls, 2);
  EXPECT_GE(entries[0].seconds, 0.005);
  EXPECT_EQ(entries[1].kind, "Nothing");
  EXPECT_EQ(entries[1].calls, 1);
}

}  // namespace
}  // namespace quire
