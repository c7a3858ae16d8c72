#include "serve/deadlines.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

namespace quire::serve {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

Deadlines::Time in(milliseconds time) { return std::chrono::steady_clock::now() + time; }

TEST(Deadlines, HappenInOrderOfTime) {
  Deadlines deadlines;
  std::vector<int> order;
  std::promise<void> last;
  const Deadlines::Time start = in(milliseconds(30));
  deadlines.add(start + milliseconds(3), [&] { last.set_value(); });
  deadlines.add(start + milliseconds(2), [&] { order.push_back(2); });
  deadlines.add(start + milliseconds(1), [&] { order.push_back(1); });
  last.get_future().wait();
  EXPECT_GE(std::chrono::steady_clock::now(), start + milliseconds(3));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(Deadlines, ASoonerOneIsNotHeldUpByALaterOne) {
  Deadlines deadlines;
  std::promise<void> sooner;
  deadlines.add(in(hours(1)), [] { FAIL(); });
  deadlines.add(in(milliseconds(1)), [&] { sooner.set_value(); });
  EXPECT_EQ(sooner.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(Deadlines, OnesCalledOffDoNotHappen) {
  Deadlines deadlines;
  std::promise<void> after;
  const Deadlines::Time when = in(milliseconds(20));
  deadlines.call_off(deadlines.add(when, [] { FAIL(); }));
  deadlines.call_off({when, 77});
  deadlines.add(when, [&] { after.set_value(); });
  after.get_future().wait();
}

TEST(Deadlines, AnActionMayAddAnother) {
  Deadlines deadlines;
  std::promise<void> second;
  deadlines.add(in(milliseconds(0)), [&] { deadlines.add(in(milliseconds(0)), [&] { second.set_value(); }); });
  second.get_future().wait();
}

TEST(Deadlines, NothingHappensAfterTheStop) {
  Deadlines deadlines;
  deadlines.add(in(hours(1)), [] { FAIL(); });
  deadlines.stop();
  deadlines.add(in(milliseconds(0)), [] { FAIL(); });
  deadlines.stop();
}

}  // namespace
}  // namespace quire::serve
