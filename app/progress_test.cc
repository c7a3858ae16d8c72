#include "progress.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace quire {
namespace {

using namespace std::chrono_literals;

// What is written while `body` runs.
template <class Body>
std::string written(bool is_terminal, Progress::Clock::duration first_pause, Body&& body) {
  char* text = nullptr;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  {
    Progress progress(out, is_terminal, first_pause,
                      [&](const std::string& line) { std::fprintf(out, "said: %s\n", line.c_str()); });
    body(progress);
  }
  std::fclose(out);
  const std::string result(text, size);
  std::free(text);
  return result;
}

void say_three(Progress& progress) {
  for (const char* text : {"one", "two", "three"}) progress.say(text);
}

TEST(Progress, OnATerminalIsOneLineThatChangesAndGoesAway) {
  EXPECT_EQ(written(true, 1h, say_three), "\r\033[Kone\r\033[Ktwo\r\033[Kthree\r\033[K");
  EXPECT_EQ(written(true, 1h, [](Progress& progress) { progress.clear(); }), "");
}

TEST(Progress, ElsewhereIsALineNowAndThen) {
  EXPECT_EQ(written(false, 1h, say_three), "");
  EXPECT_EQ(written(false, 0s, say_three), "said: one\nsaid: two\nsaid: three\n");
  const std::string slow = written(false, 10ms, [](Progress& progress) {
    for (const auto end = Progress::Clock::now() + 45ms; Progress::Clock::now() < end;) progress.say("on it");
  });
  EXPECT_TRUE(slow == "said: on it\n" || slow == "said: on it\nsaid: on it\n") << slow;  // at 10 ms, and at 30
}

}  // namespace
}  // namespace quire
