// Says what is being done while somebody waits. On a terminal it is one line that changes; elsewhere, in a log or a
// pipe, a line now and then: the first after two seconds, each later one after twice the time, so that a short wait is
// not mentioned and a long one does not fill the log.
#pragma once
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

namespace quire {

// Who is told, line by line, what goes on: a person, or a log.
using SayLine = std::function<void(const std::string& line)>;
inline void say_on_stderr(const std::string& line) { std::fprintf(stderr, "quire: %s\n", line.c_str()); }

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Progress(SayLine say_line = say_on_stderr)
      : Progress(stderr, isatty(STDERR_FILENO), std::chrono::seconds(2), std::move(say_line)) {}
  Progress(FILE* out, bool is_terminal, Clock::duration first_pause, SayLine say_line)
      : out_(out), is_terminal_(is_terminal), pause_(first_pause), say_line_(std::move(say_line)) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void say(const std::string& text) {
    if (is_terminal_) {
      std::fprintf(out_, "\r\033[K%s", text.c_str());
      std::fflush(out_);
      shown_ = true;
    } else if (Clock::now() >= last_ + pause_) {
      say_line_(text);
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
  const SayLine say_line_;
  bool shown_ = false;
};

}  // namespace quire
