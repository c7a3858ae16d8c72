#include "hub/cache.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/check.h"
#include "base/testing/temporary_folder.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

const std::string kOne(40, '1'), kTwo(40, '2');

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// A repository with two states: one file is in both of them.
class HubCache : public testing::Test {
 protected:
  HubCache() : repository(folder.path(), "org/name") {
    repository.make_folders();
    for (const std::string blob : {"aa", "bb", "cc"}) put(repository.blob(blob), "bytes of " + blob);
    repository.link(kOne, "both.json", "aa");
    repository.link(kOne, "sub/one.gguf", "bb");
    repository.link(kTwo, "both.json", "aa");
    repository.link(kTwo, "two.gguf", "cc");
    repository.remember("v1", kOne);
    repository.remember("main", kTwo);
    repository.remember("refs/pr/1", kTwo);
  }
  TemporaryFolder folder;
  RepositoryCache repository;
};

TEST_F(HubCache, TheLayoutIsTheHubs) {
  const fs::path root = fs::path(folder.path()) / "models--org--name";
  EXPECT_EQ(fs::read_symlink(root / "snapshots" / kOne / "both.json"), "../../blobs/aa");
  EXPECT_EQ(fs::read_symlink(root / "snapshots" / kOne / "sub" / "one.gguf"), "../../../blobs/bb");
  std::string text;
  std::ifstream(root / "refs" / "refs" / "pr" / "1") >> text;
  EXPECT_EQ(text, kTwo);
  EXPECT_EQ(repository.incomplete("aa"), root / "blobs" / "aa.incomplete");
  EXPECT_EQ(repository.lock("aa"), fs::path(folder.path()) / ".locks" / "models--org--name" / "aa.lock");
}

TEST_F(HubCache, LinksAreReplacedAndLeaveNothingAside) {
  repository.link(kOne, "both.json", "cc");
  EXPECT_EQ(fs::read_symlink(repository.snapshot(kOne) / "both.json"), "../../blobs/cc");
  EXPECT_TRUE(fs::is_empty(repository.lock("aa").parent_path()));
}

TEST_F(HubCache, NothingIsLeftAsideWhereAFolderIsInTheWay) {
  fs::create_directories(repository.snapshot(kOne) / "taken" / "by");
  fs::create_directories(repository.folder() / "refs" / "taken" / "by");
  EXPECT_THROW(repository.link(kOne, "taken", "aa"), CheckError);
  EXPECT_THROW(repository.remember("taken", kOne), CheckError);
  EXPECT_TRUE(fs::is_empty(repository.lock("aa").parent_path()));
}

TEST_F(HubCache, RevisionsLeadToCommits) {
  EXPECT_EQ(repository.commit_of("main"), kTwo);
  EXPECT_EQ(repository.commit_of("v1"), kOne);
  EXPECT_EQ(repository.commit_of(kOne), kOne);
  EXPECT_EQ(repository.commit_of("v2"), std::nullopt);
  put(repository.folder() / "refs" / "bad", "../../..");
  EXPECT_EQ(repository.commit_of("bad"), std::nullopt);
}

TEST_F(HubCache, AFileIsThereWhenItsBlobIs) {
  EXPECT_EQ(repository.files_of(kOne), (Paths{"both.json", "sub/one.gguf"}));
  fs::remove(repository.blob("bb"));
  EXPECT_EQ(repository.files_of(kOne), (Paths{"both.json"}));
  EXPECT_FALSE(repository.has_file(kOne, "sub/one.gguf"));
  EXPECT_TRUE(repository.files_of(std::string(40, '3')).empty());
}

TEST_F(HubCache, AList) {
  put(fs::path(folder.path()) / "datasets--a--b" / "snapshots" / kOne / "x", "");
  repository.link(kOne, "same.json", "aa");
  const auto models = cached_models(folder.path());
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].repository, "org/name");
  EXPECT_EQ(models[0].revisions, (Paths{"v1"}));
  EXPECT_EQ(models[1].revisions, (Paths{"main", "refs/pr/1"}));
  EXPECT_EQ(models[1].files, (Paths{"both.json", "two.gguf"}));
  EXPECT_EQ(models[0].files, (Paths{"both.json", "same.json", "sub/one.gguf"}));
  EXPECT_EQ(models[0].bytes, 22);
  EXPECT_EQ(models[1].bytes, 22);
  EXPECT_TRUE(cached_models(folder.path("nowhere")).empty());
}

TEST_F(HubCache, WhatOthersNeedIsKept) {
  EXPECT_TRUE(repository.remove(kOne, ""));
  EXPECT_FALSE(fs::exists(repository.blob("bb")));
  EXPECT_TRUE(fs::exists(repository.blob("aa")));
  EXPECT_EQ(repository.commit_of("v1"), std::nullopt);
  EXPECT_FALSE(repository.remove(kOne, ""));
  EXPECT_FALSE(repository.remove(kTwo, "one.gguf"));
  EXPECT_TRUE(repository.remove(kTwo, "two.gguf"));
  EXPECT_EQ(repository.files_of(kTwo), (Paths{"both.json"}));
  EXPECT_EQ(repository.commit_of("main"), kTwo);
  EXPECT_TRUE(repository.remove(kTwo, "both.json"));
  EXPECT_FALSE(repository.exists()) << "nothing is left of it";
}

TEST_F(HubCache, AFileInASubfolderTakesItAlong) {
  EXPECT_TRUE(repository.remove(kOne, "sub/one.gguf"));
  EXPECT_FALSE(fs::exists(repository.snapshot(kOne) / "sub"));
  EXPECT_TRUE(repository.has_file(kOne, "both.json"));
}

// Somebody may have linked folders of theirs into the cache.
TEST_F(HubCache, NothingIsRemovedThroughALink) {
  const fs::path outside = fs::path(folder.path()) / "outside", file = outside / "keep";
  put(file, "theirs");
  const std::string linked(40, '3');
  fs::create_directory_symlink(outside, repository.snapshot(linked));
  fs::create_directory_symlink(outside, repository.snapshot(kOne) / "linked");
  EXPECT_THROW(repository.remove(kOne, "linked/keep"), CheckError);
  EXPECT_THROW(repository.remove(linked, "keep"), CheckError);
  EXPECT_TRUE(repository.remove(kOne, "linked")) << "the link itself";
  EXPECT_TRUE(repository.remove(linked, ""));
  EXPECT_FALSE(fs::exists(repository.snapshot(linked)));
  fs::rename(repository.folder() / "blobs", outside / "blobs");
  fs::create_directory_symlink(outside / "blobs", repository.folder() / "blobs");
  put(outside / "blobs" / "keep", "theirs");
  EXPECT_TRUE(repository.remove(kTwo, "two.gguf"));
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(fs::exists(outside / "blobs" / "keep"));
}

TEST_F(HubCache, WhatIsKnownIsNotWrittenAgain) {
  const fs::path ref = repository.folder() / "refs" / "main";
  fs::permissions(ref, fs::perms::owner_read);
  repository.remember("main", kTwo);
  EXPECT_EQ(fs::status(ref).permissions(), fs::perms::owner_read) << "it is another file";
}

TEST_F(HubCache, ModelsMayHaveNoOrganisation) {
  RepositoryCache old(folder.path(), "gpt2");
  old.make_folders();
  put(old.blob("dd"), "bytes");
  old.link(kOne, "m.gguf", "dd");
  put(old.folder() / "snapshots" / ".DS_Store", "");
  const std::vector<CachedModel> models = cached_models(folder.path());
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0].repository, "gpt2");
  EXPECT_EQ(models[0].files, (Paths{"m.gguf"}));
}

TEST_F(HubCache, Everything) {
  put(repository.lock("aa"), "");
  repository.remove_all();
  EXPECT_TRUE(cached_models(folder.path()).empty());
  EXPECT_FALSE(fs::exists(repository.lock("aa")));
}

TEST_F(HubCache, ASnapshotIsCalledByItsModel) {
  EXPECT_EQ(name_of_snapshot(repository.snapshot(kOne)), "name");
  EXPECT_EQ(name_of_snapshot(repository.snapshot(kOne).string() + "/"), "name");
  EXPECT_EQ(name_of_snapshot(repository.snapshot(kOne) / "x.gguf"), std::nullopt);
  EXPECT_EQ(name_of_snapshot("/models/snapshots/x"), std::nullopt);
}

}  // namespace
}  // namespace quire::hub
