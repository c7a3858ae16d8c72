// The parameters of a call that were accepted and have no effect: named in the answer's x-quire-ignored header and in
// the log, so that nothing is ignored silently.
//
//   Ignored ignored(strict);               strict: nothing is to be ignored, Fields refuse what they do not know
//   ignored.add("messages[3].cache_control");
//   ignored.header();                      "messages[].cache_control"
//
// Names come from strangers and go into a header: places in lists are left out, so that a name comes once, characters
// that a name does not have become question marks, and the whole is of limited length.
#pragma once
#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace quire::serve {

inline constexpr std::string_view kIgnoredHeader = "x-quire-ignored";

class Ignored {
 public:
  static constexpr size_t kMostBytes = 1000;

  explicit Ignored(bool strict = false) : strict_(strict) {}

  bool strict() const { return strict_; }
  void add(std::string_view path);
  const std::string& header() const { return header_; }  // names with commas between, in their order; "": none

 private:
  const bool strict_;
  std::set<std::string> names_;
  std::string header_;
  bool full_ = false;
};

}  // namespace quire::serve
