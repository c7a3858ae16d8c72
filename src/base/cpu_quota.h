// How much processor time the process's control group grants it, as a number of cores.
#pragma once
#include <optional>
#include <string_view>

namespace quire {

// The least quota among the process's own cgroup and those above it, in both versions of the cgroup interface;
// none when nothing limits it. Reads /proc/self/cgroup and /proc/self/mountinfo below root, and the mounts that they
// name below root too, so that tests can lay out a machine of their own.
std::optional<double> cgroup_cpu_quota(std::string_view root = "");

}  // namespace quire
