// Says what is being done while somebody waits. On a terminal it is one line that changes; elsewhere, in a log or a
// pipe, a line now and then: the first after two seconds, each later one after twice the time, so that a short wait is
// not mentioned and a long one does not fill the log.
#pragma once
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace quire {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  Progress() : Progress(stderr, isatty(STDERR_FILENO), std::chrono::seconds(2)) {}
  Progress(FILE* out, bool is_terminal, Clock::duration first_pause)
      : out_(out), is_terminal_(is_terminal), pause_(first_pause) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void say(const std::string& text) {
    if (is_terminal_) {
      std::fprintf(out_, "\r\033[K%s", text.c_str());
      std::fflush(out_);
      shown_ = true;
    } else if (Clock::now() >= last_ + pause_) {
      std::fprintf(out_, "quire: %s\n", text.c_str());
      std::fflush(out_);
      last_ = Clock::now();
      pause_ *= 2;
    }
  }

  void clear() {  // before something else is written to the terminal
    if (shown_) std::fputs("\r\033[K", out_);
    shown_ = false;
  }

 private:
  FILE* const out_;
  const bool is_terminal_;
  Clock::duration pause_;
  Clock::time_point last_ = Clock::now();
  bool shown_ = false;
};

}  // namespace quire
