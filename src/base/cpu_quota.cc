// Every team of threads asks for the quota, also under MemorySanitizer, which takes what the uninstrumented standard
// library writes for uninitialised. So files are read by system calls into a Buffer and parsed as views, without
// streams, strings or std::filesystem.
#include "base/cpu_quota.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/buffer.h"

namespace quire {
namespace {

// A whole file; empty when it cannot be read.
class File {
 public:
  File() = default;
  explicit File(std::initializer_list<std::string_view> path_parts) : memory_(kMostBytes) {
    std::vector<char> path;
    for (std::string_view part : path_parts) path.insert(path.end(), part.begin(), part.end());
    path.push_back('\0');
    const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    char* const data = reinterpret_cast<char*>(memory_.data());
    size_t size = 0;
    for (ssize_t got; (got = read(file, data + size, kMostBytes - size)) > 0;) size += static_cast<size_t>(got);
    close(file);
    text_ = {data, size};
  }
  std::string_view text() const { return text_; }

 private:
  static constexpr size_t kMostBytes = size_t{4} << 20;  // far above the mounts of a busy container host
  Buffer memory_;
  std::string_view text_;
};

// Cuts the text before the first separator off and returns it.
std::string_view take(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

bool names_cpu(std::string_view list) {
  while (!list.empty())
    if (take(list, ',') == "cpu") return true;
  return false;
}

struct Mount {
  bool version_2;
  std::string_view cgroup;  // the cgroup that appears at the mount point; not "/" inside many containers
  std::string_view point;
};

// "32 31 0:29 /of/the/group /mounted/here rw,relatime [more] - cgroup source rw,cpu,cpuacct"
std::optional<Mount> parse_mount(std::string_view line) {
  const size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  std::string_view place = line.substr(0, dash), kind = line.substr(dash + 3);
  for (int field = 0; field < 3; ++field) take(place, ' ');
  const std::string_view cgroup = take(place, ' '), point = take(place, ' ');
  const std::string_view type = take(kind, ' ');
  take(kind, ' ');
  const bool version_1 = type == "cgroup" && names_cpu(kind);
  if (!version_1 && type != "cgroup2") return std::nullopt;
  return Mount{!version_1, cgroup, point};
}

// From lines "4:cpu,cpuacct:/path" for version 1, "0::/path" for version 2.
std::optional<std::string_view> own_cgroup(std::string_view lines, bool version_2) {
  while (!lines.empty()) {
    std::string_view path = take(lines, '\n');
    const std::string_view number = take(path, ':'), controllers = take(path, ':');
    if (version_2 ? number == "0" && controllers.empty() : names_cpu(controllers)) return path;
  }
  return std::nullopt;
}

std::optional<int64_t> positive(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || value <= 0) return std::nullopt;  // "max", "-1", a missing file: no limit
  return value;
}

// A folder of the cgroup hierarchy: where it is mounted, and the way from there.
struct Folder {
  std::string_view root, point, below;
};

std::optional<double> quota_in(const Folder& folder, bool version_2) {
  const auto file = [&](std::string_view name) { return File({folder.root, folder.point, "/", folder.below, name}); };
  const File first = file(version_2 ? "/cpu.max" : "/cpu.cfs_quota_us");
  const File second = version_2 ? File() : file("/cpu.cfs_period_us");
  std::string_view quota_text = first.text();
  const auto quota = positive(take(quota_text, ' '));
  const auto period = positive(version_2 ? quota_text : second.text());
  if (!quota || !period) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// The cgroup's path below the mount point. A path outside of what is mounted is one the process cannot see; the
// mount point is then the nearest that it can.
std::string_view below_mount(std::string_view cgroup, std::string_view mounted) {
  if (mounted == "/") mounted = "";
  if (!cgroup.starts_with(mounted) || cgroup.starts_with("/..")) return "";
  cgroup.remove_prefix(mounted.size());
  return cgroup.starts_with('/') ? cgroup.substr(1) : "";
}

}  // namespace

std::optional<double> cgroup_cpu_quota(std::string_view root) {
  const File mounts({root, "/proc/self/mountinfo"}), cgroups({root, "/proc/self/cgroup"});
  std::optional<double> least;
  for (std::string_view lines = mounts.text(); !lines.empty();) {
    const auto mount = parse_mount(take(lines, '\n'));
    if (!mount) continue;
    const auto cgroup = own_cgroup(cgroups.text(), mount->version_2);
    if (!cgroup) continue;
    const std::string_view below = below_mount(*cgroup, mount->cgroup);
    // From the mount point down to the process's own: a limit on any of them holds for all below it.
    for (size_t end = 0;; end = std::min(below.find('/', end + 1), below.size())) {
      const auto quota = quota_in({root, mount->point, below.substr(0, end)}, mount->version_2);
      if (quota) least = std::min(least.value_or(*quota), *quota);
      if (end == below.size()) break;
    }
  }
  return least;
}

}  // namespace quire
