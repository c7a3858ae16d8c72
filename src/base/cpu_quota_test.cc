#include "base/cpu_quota.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace quire {
namespace {

namespace fs = std::filesystem;

// A machine's /proc and cgroup mounts in a folder of the test's own.
class CpuQuota : public testing::Test {
 protected:
  CpuQuota() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() / ("quire_quota_" + std::to_string(getpid()) + "_" + test->name());
  }
  ~CpuQuota() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  static constexpr const char* kVersion1 =
      "23 1 8:1 / / rw - ext4 /dev/root rw\n"
      "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
      "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n";
  static constexpr const char* kVersion2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

  fs::path root_;
};

TEST_F(CpuQuota, NothingMountedIsNoLimit) { EXPECT_FALSE(cgroup_cpu_quota(root_.native())); }

TEST_F(CpuQuota, Version2) {
  put("proc/self/cgroup", "0::/system/quire\n");
  put("proc/self/mountinfo", kVersion2);
  put("sys/fs/cgroup/system/quire/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_.native()), 1.5);
}

TEST_F(CpuQuota, Version2WithoutLimit) {
  put("proc/self/cgroup", "0::/system/quire\n");
  put("proc/self/mountinfo", kVersion2);
  put("sys/fs/cgroup/system/quire/cpu.max", "max 100000\n");
  EXPECT_FALSE(cgroup_cpu_quota(root_.native()));
}

TEST_F(CpuQuota, AParentThatGrantsLessLimits) {
  put("proc/self/cgroup", "0::/system/quire\n");
  put("proc/self/mountinfo", kVersion2);
  put("sys/fs/cgroup/system/quire/cpu.max", "800000 100000\n");
  put("sys/fs/cgroup/system/cpu.max", "300000 100000\n");
  put("sys/fs/cgroup/other/cpu.max", "100000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_.native()), 3.0);
}

TEST_F(CpuQuota, Version1) {
  put("proc/self/cgroup", "5:cpuset:/sets\n4:cpu,cpuacct:/jobs/7\n0::/\n");
  put("proc/self/mountinfo", kVersion1);
  put("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "250000\n");
  put("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpuset/sets/cpu.cfs_quota_us", "100000\n");  // another controller's: not read
  put("sys/fs/cgroup/cpuset/sets/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_.native()), 2.5);
}

TEST_F(CpuQuota, Version1WithoutLimit) {
  put("proc/self/cgroup", "4:cpu,cpuacct:/\n");
  put("proc/self/mountinfo", kVersion1);
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(cgroup_cpu_quota(root_.native()));
}

// A container that sees the host's path in /proc but only its own group at the mount point.
TEST_F(CpuQuota, ContainerMountedAtItsOwnGroup) {
  put("proc/self/cgroup", "4:cpu:/docker/abc/inner\n");
  put("proc/self/mountinfo", "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "200000\n");
  put("sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_.native()), 2.0);
}

TEST_F(CpuQuota, GroupOutsideOfTheMountFallsBackToTheMount) {
  put("proc/self/cgroup", "0::/../elsewhere\n");
  put("proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  put("elsewhere/cpu.max", "10000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_.native()), 0.5);
}

TEST_F(CpuQuota, MalformedLinesAreNoLimit) {
  put("proc/self/cgroup", "nonsense\n0:\n4:cpu\n");
  put("proc/self/mountinfo", "a b c\n- - -\n1 2 3 / /sys/fs/cgroup - cgroup2\n\n");
  EXPECT_FALSE(cgroup_cpu_quota(root_.native()));
}

}  // namespace
}  // namespace quire
