#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"

namespace quire {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, HasTheBytesOfTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder.put("some", "bytes");
  const MappedFile file(path);
  EXPECT_EQ(text_of(file), "bytes");
  EXPECT_EQ(file.path(), path);
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const TemporaryFolder folder;
  const MappedFile file(folder.put("empty", ""));
  EXPECT_TRUE(file.bytes().empty());
  file.forget(file.bytes());
}

TEST(MappedFile, BytesStayWhereTheyAreWhenItMoves) {
  const TemporaryFolder folder;
  MappedFile first(folder.put("a", "first"));
  const auto bytes = first.bytes();
  MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes().data(), bytes.data());
  MappedFile third(folder.put("b", "other"));
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), bytes.data());
  EXPECT_EQ(text_of(third), "first");
  EXPECT_EQ(third.path(), folder.path("a"));
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  expect_refused([&] { MappedFile file(folder.path("none")); }, folder.path("none") + ": No such file");
  expect_refused([&] { MappedFile file(folder.path()); }, "is a folder");
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  expect_refused([&] { MappedFile file(folder.path("pipe")); }, "is not a regular file");
}

// Which pages of the mapping are this process's at the moment, by the system's own count of resident pages in it.
size_t resident_kib(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  char begin[32];
  std::snprintf(begin, sizeof(begin), "%lx-", reinterpret_cast<unsigned long>(address));
  std::string line;
  while (std::getline(maps, line) && !line.starts_with(begin)) continue;
  while (std::getline(maps, line))
    if (line.starts_with("Rss:")) return std::stoul(line.substr(4));
  return 0;
}

TEST(MappedFile, ForgottenPagesLeaveTheProcessAndComeBack) {
  const TemporaryFolder folder;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const MappedFile file(folder.put("pages", std::string(64 * page, 'x')));
  const auto count = [&] { return std::count(text_of(file).begin(), text_of(file).end(), 'x'); };
  ASSERT_EQ(count(), std::ssize(file.bytes()));
  ASSERT_EQ(resident_kib(file.bytes().data()), 64 * page / 1024);
  file.forget(file.bytes().subspan(1, 62 * page));  // parts of the pages at both ends, which are kept
  EXPECT_EQ(resident_kib(file.bytes().data()), 3 * page / 1024);
  EXPECT_EQ(count(), std::ssize(file.bytes()));
}

TEST(MappedFile, ForgetsNothingOfOtherFiles) {
  const TemporaryFolder folder;
  const MappedFile file(folder.put("a", "first"));
  const std::vector<std::byte> other(10);
  expect_refused([&] { file.forget(other); }, "another file");
}

}  // namespace
}  // namespace quire
