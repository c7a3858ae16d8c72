// How much memory the process may still take: for sizes that are chosen by default.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace quire::engine {

// The system's available memory, at most what is left of the container's limit (both versions of the cgroup interface,
// as a container sees its own); none when neither is known. Reads /proc/meminfo and /sys/fs/cgroup below root, so that
// tests can lay out a machine of their own.
std::optional<int64_t> available_memory(const std::string& root = "");

}  // namespace quire::engine
