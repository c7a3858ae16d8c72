#include "hub/partial_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;

const std::string kHello = "ce013625030ba8dba906f756967f9e9ca394464a";  // git's id of "hello\n"

TEST(PartialFile, GoesOnWhereAnotherEnded) {
  const TemporaryFolder folder;
  const std::string path = folder.path("x.incomplete");
  {
    PartialFile file(path, kHello, 6);
    file.append("hel");
  }
  PartialFile file(path, kHello, 6);
  EXPECT_EQ(file.done(), 3);
  EXPECT_EQ(file.left(), 3);
  file.append("lo\n");
  EXPECT_TRUE(file.is_right());
  file.move_to(folder.path("x"));
  EXPECT_EQ(fs::file_size(folder.path("x")), 6u);
  EXPECT_FALSE(fs::exists(path));
}

TEST(PartialFile, StartsOver) {
  const TemporaryFolder folder;
  PartialFile file(folder.path("x"), kHello, 6);
  file.append("HEL");
  file.start_over();
  file.append("hello\n");
  EXPECT_TRUE(file.is_right());
}

TEST(PartialFile, MoreThanTheFileHasIsNoPartOfIt) {
  const TemporaryFolder folder;
  PartialFile file(folder.put("x", "hello and more"), kHello, 6);
  EXPECT_EQ(file.done(), 0);
}

TEST(PartialFile, AWrongHashIsSeen) {
  const TemporaryFolder folder;
  PartialFile file(folder.path("x"), kHello, 6);
  file.append("jello\n");
  EXPECT_FALSE(file.is_right());
  file.throw_away();
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(PartialFile, AnEtagThatIsNoHashIsTrusted) {
  const TemporaryFolder folder;
  PartialFile file(folder.path("x"), "v1", 6);
  file.append("jello\n");
  EXPECT_TRUE(file.is_right());
}

TEST(PartialFile, NothingLeavesNothingBehind) {
  const TemporaryFolder folder;
  { PartialFile file(folder.path("x"), kHello, 6); }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// As on a full disk: the system takes the first four bytes and no more.
TEST(PartialFile, WhatCannotBeWrittenIsOneLineAndTheRestIsKept) {
  const TemporaryFolder folder;
  const std::string path = folder.path("x");
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit little{.rlim_cur = 4, .rlim_max = before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  {
    PartialFile file(path, kHello, 6);
    setrlimit(RLIMIT_FSIZE, &little);
    expect_refused([&] { file.append("hello\n"); }, "cannot write " + path + ": File too large");
    setrlimit(RLIMIT_FSIZE, &before);
  }
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(fs::file_size(path), 4u);
}

}  // namespace
}  // namespace quire::hub
