// A line on the terminal that says what is being done; silent when nobody watches.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <string>

namespace quire {

class Progress {
 public:
  Progress() : shown_(isatty(STDERR_FILENO)) {}
  ~Progress() { say(""); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void say(const std::string& text) const {
    constexpr const char* kClearLine = "\r\033[K";
    if (shown_) std::fprintf(stderr, "%s%s", kClearLine, text.c_str());
  }

 private:
  bool shown_;
};

}  // namespace quire
