// Text that is shown as it comes and ends before a stop text, also when that arrives in pieces: what may still turn out
// to be the beginning of a stop text is held back until it is certain. Of several stop texts the one that is complete
// first counts, so how the text is cut into pieces does not matter.
//
// Errors   an empty stop text throws CheckError.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops);

  std::string push(std::string_view text);  // what is now certain to be shown; nothing once a stop text was found
  std::string flush();                      // the end: what was held back is shown after all
  bool found() const { return found_; }
  const std::string& match() const { return match_; }  // the stop text that was found

 private:
  size_t first_stop();
  size_t held_from() const;

  std::vector<std::string> stops_;
  std::string held_, match_;
  bool found_ = false;
};

}  // namespace quire::text
