#include "stop_signals.h"

#include <gtest/gtest.h>

#include <csignal>

namespace quire {
namespace {

using namespace std::chrono_literals;
using Hangup = StopSignals::Hangup;

// While the model is loaded nobody waits yet: the files are read again as soon as somebody does.
TEST(StopSignals, AHangupWhileTheModelIsLoadedIsHeardLater) {
  StopSignals signals(Hangup::reloads);
  std::raise(SIGHUP);
  signals.wait_from_now_on();
  EXPECT_EQ(signals.wait(), Signal::reload);
  std::raise(SIGTERM);
  EXPECT_EQ(signals.wait(), Signal::stop);
}

// While the server drains, a hangup is neither a second wish to end nor the end of the process.
TEST(StopSignals, AHangupWhileTheServerDrainsCutsNothingShort) {
  StopSignals signals(Hangup::reloads);
  signals.wait_from_now_on();
  std::raise(SIGHUP);
  EXPECT_FALSE(signals.wait_for(10ms));
  std::raise(SIGINT);
  EXPECT_TRUE(signals.wait_for(1min));
}

TEST(StopSignals, WithoutFilesToReadAHangupEndsTheProcess) {
  EXPECT_EXIT(
      {
        StopSignals signals(Hangup::ends_it);
        signals.wait_from_now_on();
        std::raise(SIGHUP);
      },
      ::testing::KilledBySignal(SIGHUP), "");
}

}  // namespace
}  // namespace quire
