#include "text/stop_text.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::text {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) check(!stop.empty(), "a stop text is empty");
}

std::string StopText::push(std::string_view text) {
  if (found_) return "";
  held_ += text;
  const size_t stop = first_stop();
  const size_t end = found_ ? stop : held_from();
  std::string shown = held_.substr(0, end);
  held_.erase(0, end);
  return shown;
}

std::string StopText::flush() { return found_ ? "" : std::exchange(held_, ""); }

// Where the stop text begins that is complete first, of those the longest; the text's size when there is none.
size_t StopText::first_stop() {
  size_t begin = held_.size(), end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t found = held_.find(stop);
    if (found == std::string::npos || found + stop.size() > end) continue;
    begin = found + stop.size() < end ? found : std::min(begin, found);
    end = found + stop.size();
    if (begin == found) match_ = stop;
    found_ = true;
  }
  return begin;
}

// Where the longest end of the held text begins that is the beginning of a stop text.
size_t StopText::held_from() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    size_t length = std::min(held_.size(), stop.size() - 1);
    while (length > longest && !held_.ends_with(std::string_view(stop).substr(0, length))) --length;
    longest = std::max(longest, length);
  }
  return held_.size() - longest;
}

}  // namespace quire::text
