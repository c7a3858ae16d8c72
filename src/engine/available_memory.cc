#include "engine/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>

namespace quire::engine {
namespace {

std::optional<int64_t> meminfo(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  int64_t kilobytes = 0;
  while (file >> word)
    if (word == name && file >> kilobytes) return kilobytes << 10;
  return std::nullopt;
}

// "max", or a file that is not there: no number.
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

std::optional<int64_t> left_of(const std::string& limit_path, const std::string& used_path) {
  const std::optional<int64_t> limit = number_in(limit_path), used = number_in(used_path);
  if (!limit || !used) return std::nullopt;
  return std::max<int64_t>(*limit - *used, 0);
}

}  // namespace

std::optional<int64_t> available_memory(const std::string& root) {
  const std::string cgroup = root + "/sys/fs/cgroup/";
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  const int64_t least = std::min({
      meminfo(root + "/proc/meminfo", "MemAvailable:").value_or(kUnknown),
      left_of(cgroup + "memory.max", cgroup + "memory.current").value_or(kUnknown),
      left_of(cgroup + "memory/memory.limit_in_bytes", cgroup + "memory/memory.usage_in_bytes").value_or(kUnknown),
  });
  return least == kUnknown ? std::nullopt : std::optional(least);
}

}  // namespace quire::engine
