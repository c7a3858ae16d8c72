// What whoever waits for files of a hub is told meanwhile.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace quire::hub {

struct FetchProgress {
  std::string file;  // the one that is coming
  int64_t done = 0;  // bytes of all files that are fetched together
  int64_t total = 0;
};

struct FetchEvents {
  std::function<void(const std::string& line)> say;          // a choice, a wait, a second try
  std::function<void(const FetchProgress& state)> progress;  // often
};

}  // namespace quire::hub
