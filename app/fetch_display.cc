#include "fetch_display.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/size_text.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kBetweenLines = 5s, kBetweenChanges = 100ms;

}  // namespace

FetchDisplay::FetchDisplay(SayLine say_line) : watched_(isatty(STDERR_FILENO)), say_line_(std::move(say_line)) {}

hub::FetchEvents FetchDisplay::events() {
  return {.say = [this](const std::string& line) { say(line); },
          .progress = [this](const hub::FetchProgress& progress) { show(progress); }};
}

void FetchDisplay::say(const std::string& line) {
  if (watched_) progress_.say("");
  say_line_(line);
}

std::string FetchDisplay::line_of(const hub::FetchProgress& progress) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  const double rate = static_cast<double>(progress.done - first_done_) / std::max(seconds, 1e-3);
  std::string line = cat("fetching ", progress.file, ": ", progress.total ? 100 * progress.done / progress.total : 100,
                         " % of ", size_text(progress.total));
  if (seconds < 1 || rate < 1) return line;
  const auto left = static_cast<int64_t>(static_cast<double>(progress.total - progress.done) / rate);
  return cat(line, ", ", size_text(static_cast<int64_t>(rate)), "/s, ", left, " s left");
}

void FetchDisplay::show(const hub::FetchProgress& progress) {
  const Clock::time_point now = Clock::now();
  const bool first = !begun_, last = progress.done == progress.total && !ended_;
  if (first) {
    begun_ = true;
    begin_ = now;
    first_done_ = progress.done;
  }
  if (!first && !last && now - shown_ < (watched_ ? kBetweenChanges : kBetweenLines)) return;
  shown_ = now;
  ended_ = last;
  if (watched_)
    progress_.say(last ? "" : line_of(progress));
  else
    say(line_of(progress));
}

}  // namespace quire
