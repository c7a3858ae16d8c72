// The hub's cache on disk, in the layout of Hugging Face's own programs, so that files are shared with them:
//
//   models--ORG--NAME/blobs/ETAG                  a file's bytes, once
//                     blobs/ETAG.incomplete       ... as far as they have come
//                     snapshots/COMMIT/FILE       a link to its blob: ../../blobs/ETAG
//                     refs/REVISION               the commit that a branch or tag was at when it was last asked for
//   .locks/models--ORG--NAME/ETAG.lock            held by the process that fetches this blob
//
// Whatever a snapshot links to is whole: a link is made after its blob was verified.
//
// Errors   CheckError, one line with the path: what cannot be read, written or removed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::hub {

class RepositoryCache {
 public:
  RepositoryCache(const std::filesystem::path& cache, const std::string& repository);  // ORG/NAME

  const std::filesystem::path& folder() const { return folder_; }
  bool exists() const;

  std::filesystem::path blob(const std::string& etag) const;
  std::filesystem::path incomplete(const std::string& etag) const;
  std::filesystem::path lock(const std::string& etag) const;
  std::filesystem::path snapshot(const std::string& commit) const;

  std::optional<std::string> commit_of(const std::string& revision) const;  // a commit is its own
  std::vector<std::string> files_of(const std::string& commit) const;       // whole ones, sorted
  bool has_file(const std::string& commit, const std::string& file) const;  // whole
  void link(const std::string& commit, const std::string& file, const std::string& etag) const;
  void remember(const std::string& revision, const std::string& commit) const;  // a commit needs no remembering
  void make_folders() const;

  int64_t bytes() const;  // of all blobs, unfinished ones too
  void remove_all() const;
  // Files of a snapshot ("": all of it), then the blobs that no snapshot needs any more. False: there were none.
  bool remove(const std::string& commit, const std::string& file) const;

 private:
  std::filesystem::path folder_, locks_;
};

// One line of `quire models`: a state of a repository.
struct CachedModel {
  std::string repository;              // ORG/NAME
  std::vector<std::string> revisions;  // that were at this commit; may be none
  std::string commit;
  std::filesystem::path folder;
  std::vector<std::string> files;  // whole ones
  int64_t bytes = 0;               // of these, shared ones once
};
std::vector<CachedModel> cached_models(const std::filesystem::path& cache);  // by name, then commit; no folder: none

// The NAME of ORG/NAME whose snapshot a path names, as the folder itself or with a slash at its end; none: it names
// none. A snapshot's folder is called by its commit, which nobody calls a model by.
std::optional<std::string> name_of_snapshot(const std::filesystem::path& path);

}  // namespace quire::hub
