#include "engine/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace quire::engine {
namespace {

namespace fs = std::filesystem;

class AvailableMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::optional<int64_t> available() const { return available_memory(root_.string()); }

  fs::path root_;
};

TEST_F(AvailableMemory, IsTheSystemsWithoutAContainer) {
  write("proc/meminfo", "MemTotal:  4000 kB\nMemFree:   100 kB\nMemAvailable:   3000 kB\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "77\n");
  EXPECT_EQ(available(), 3000 << 10);
}

TEST_F(AvailableMemory, IsAtMostWhatTheContainerHasLeft) {
  write("proc/meminfo", "MemAvailable: 3000 kB\n");
  write("sys/fs/cgroup/memory.max", "2000000\n");
  write("sys/fs/cgroup/memory.current", "500000\n");
  EXPECT_EQ(available(), 1500000);
  write("sys/fs/cgroup/memory.current", "2500000\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(AvailableMemory, KnowsTheOlderInterface) {
  write("proc/meminfo", "MemAvailable: 3000 kB\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "400000\n");
  EXPECT_EQ(available(), 600000);
}

TEST_F(AvailableMemory, IsUnknownWhenNothingSaysIt) { EXPECT_EQ(available(), std::nullopt); }

TEST(AvailableMemoryOfThisMachine, IsKnown) { EXPECT_GT(available_memory().value_or(0), 0); }

}  // namespace
}  // namespace quire::engine
