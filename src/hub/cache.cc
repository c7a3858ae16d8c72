#include "hub/cache.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/check.h"
#include "hub/model_name.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelPrefix = "models--", kSlash = "--";

std::string folder_name(const std::string& repository) {
  const size_t slash = repository.find('/');
  if (slash == repository.npos) return cat(kModelPrefix, repository);  // as the hub's oldest models are called
  return cat(kModelPrefix, repository.substr(0, slash), kSlash, repository.substr(slash + 1));
}

// ORG/NAME of a folder's name; none: it is another kind of folder.
std::optional<std::string> repository_of(const std::string& name) {
  if (!name.starts_with(kModelPrefix)) return std::nullopt;
  const std::string rest = name.substr(kModelPrefix.size());
  const size_t slash = rest.find(kSlash);
  const std::string repository = slash == rest.npos ? rest : rest.substr(0, slash) + "/" + rest.substr(slash + 2);
  return repository;
}

// Runs body; what the file system refuses becomes one line.
template <class Body>
auto about_files(Body&& body) {
  try {
    return body();
  } catch (const fs::filesystem_error& error) {
    throw CheckError(cat("the model cache: ", error.path1().string(), ": ", error.code().message()));
  }
}

bool is_whole(const fs::path& path) {
  std::error_code missing;
  return fs::is_regular_file(path, missing);  // follows the link
}

// Regular files and links below a folder, as paths relative to it, sorted; no folder: none.
std::vector<std::string> paths_below(const fs::path& folder) {
  std::vector<std::string> paths;
  std::error_code missing;
  if (!fs::is_directory(folder, missing)) return paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory() || entry.is_symlink()) paths.push_back(entry.path().lexically_relative(folder));
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code missing;
  if (!fs::is_directory(folder, missing)) return {};
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
  return line;
}

std::vector<std::string> revisions_at(const fs::path& repository, const std::string& commit) {
  std::vector<std::string> revisions;
  for (const std::string& revision : paths_below(repository / "refs"))
    if (first_line(repository / "refs" / revision) == commit) revisions.push_back(revision);
  return revisions;
}

// Files may share their bytes.
int64_t bytes_of(const fs::path& snapshot, const std::vector<std::string>& files) {
  std::set<fs::path> blobs;
  for (const std::string& file : files) blobs.insert(fs::canonical(snapshot / file));
  int64_t sum = 0;
  for (const fs::path& blob : blobs) sum += static_cast<int64_t>(fs::file_size(blob));
  return sum;
}

// What is still coming is left to whoever fetches it; and a folder that somebody linked here is theirs.
void remove_unused_blobs(const fs::path& repository) {
  if (fs::is_symlink(repository / "blobs")) return;
  std::set<fs::path> used;
  for (const std::string& link : paths_below(repository / "snapshots")) {
    std::error_code dangling;
    used.insert(fs::canonical(repository / "snapshots" / link, dangling));
  }
  for (const fs::path& blob : entries_of(repository / "blobs"))
    if (!used.contains(fs::canonical(blob)) && blob.extension() != ".incomplete") fs::remove(blob);
}

// Whether a folder is where its path says, below another that is; links on the way may lead anywhere.
bool is_really_below(const fs::path& folder, const fs::path& above) {
  return fs::canonical(folder) ==
         fs::canonical(above.parent_path()) / above.filename() / folder.lexically_relative(above);
}

// Made aside and moved: whoever else looks, or does the same, sees what was before or all of the new. Nothing is left
// aside.
template <class Make>
void replace(const fs::path& place, const fs::path& aside, Make&& make) {
  fs::remove(aside);
  try {
    make(aside);
    fs::rename(aside, place);
  } catch (...) {
    std::error_code ignored;
    fs::remove(aside, ignored);
    throw;
  }
}

void remove_empty_folders(const fs::path& from, const fs::path& below) {
  for (fs::path folder = from; folder != below && fs::is_empty(folder); folder = folder.parent_path())
    fs::remove(folder);
}

}  // namespace

RepositoryCache::RepositoryCache(const fs::path& cache, const std::string& repository)
    : folder_(cache / folder_name(repository)), locks_(cache / ".locks" / folder_name(repository)) {}

bool RepositoryCache::exists() const {
  std::error_code missing;
  return fs::is_directory(folder_, missing);
}

fs::path RepositoryCache::blob(const std::string& etag) const { return folder_ / "blobs" / etag; }
fs::path RepositoryCache::incomplete(const std::string& etag) const {
  return folder_ / "blobs" / (etag + ".incomplete");
}
fs::path RepositoryCache::lock(const std::string& etag) const { return locks_ / (etag + ".lock"); }
fs::path RepositoryCache::snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }

std::optional<std::string> RepositoryCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const std::string commit = first_line(folder_ / "refs" / revision);
  return is_commit(commit) ? std::optional(commit) : std::nullopt;
}

std::vector<std::string> RepositoryCache::files_of(const std::string& commit) const {
  return about_files([&] {
    std::vector<std::string> files = paths_below(snapshot(commit));
    std::erase_if(files, [&](const std::string& file) { return !has_file(commit, file); });
    return files;
  });
}

bool RepositoryCache::has_file(const std::string& commit, const std::string& file) const {
  return is_whole(snapshot(commit) / file);
}

void RepositoryCache::make_folders() const {
  about_files([&] {
    fs::create_directories(folder_ / "blobs");
    fs::create_directories(locks_);
  });
}

void RepositoryCache::link(const std::string& commit, const std::string& file, const std::string& etag) const {
  about_files([&] {
    const fs::path place = snapshot(commit) / file;
    const fs::path target = blob(etag).lexically_relative(place.parent_path());
    fs::create_directories(place.parent_path());
    std::error_code is_taken;
    fs::create_symlink(target, place, is_taken);
    if (!is_taken || (fs::is_symlink(place) && fs::read_symlink(place) == target)) return;
    replace(place, locks_ / cat(etag, ".", getpid(), ".link"),
            [&](const fs::path& aside) { fs::create_symlink(target, aside); });
  });
}

void RepositoryCache::remember(const std::string& revision, const std::string& commit) const {
  if (commit_of(revision) == commit) return;
  about_files([&] {
    const fs::path place = folder_ / "refs" / revision;
    fs::create_directories(place.parent_path());
    fs::create_directories(locks_);
    replace(place, locks_ / cat(commit, ".", getpid(), ".ref"), [&](const fs::path& aside) {
      std::ofstream file(aside, std::ios::trunc);
      file << commit;
      file.close();
      check(file.good(), "the model cache: ", aside.string(), " cannot be written");
    });
  });
}

int64_t RepositoryCache::bytes() const {
  return about_files([&] {
    int64_t sum = 0;
    for (const fs::path& blob : entries_of(folder_ / "blobs")) sum += static_cast<int64_t>(fs::file_size(blob));
    return sum;
  });
}

void RepositoryCache::remove_all() const {
  about_files([&] {
    fs::remove_all(folder_);
    fs::remove_all(locks_);
  });
}

bool RepositoryCache::remove(const std::string& commit, const std::string& file) const {
  return about_files([&] {
    const fs::path snapshots = folder_ / "snapshots";
    const fs::path place = file.empty() ? snapshot(commit) : snapshot(commit) / file;
    if (!fs::is_symlink(place) && !fs::exists(place)) return false;
    check(
        place.parent_path() == snapshots ? !fs::is_symlink(snapshots) : is_really_below(place.parent_path(), snapshots),
        "the model cache: ", place.string(), " leads out of the cache through a link, and is left alone");
    fs::remove_all(place);
    if (!file.empty()) remove_empty_folders(place.parent_path(), snapshots);
    remove_unused_blobs(folder_);
    if (!fs::exists(snapshot(commit)))
      for (const std::string& revision : revisions_at(folder_, commit)) fs::remove(folder_ / "refs" / revision);
    if (entries_of(folder_ / "snapshots").empty()) remove_all();
    return true;
  });
}

std::vector<CachedModel> cached_models(const fs::path& cache) {
  return about_files([&] {
    std::vector<CachedModel> models;
    for (const fs::path& folder : entries_of(cache)) {
      const auto repository = repository_of(folder.filename());
      if (!repository) continue;
      const RepositoryCache own(cache, *repository);
      for (const fs::path& snapshot : entries_of(folder / "snapshots")) {
        if (!fs::is_directory(snapshot)) continue;
        const std::string commit = snapshot.filename();
        CachedModel model{.repository = *repository,
                          .revisions = revisions_at(folder, commit),
                          .commit = commit,
                          .folder = snapshot,
                          .files = own.files_of(commit)};
        model.bytes = bytes_of(snapshot, model.files);
        models.push_back(std::move(model));
      }
    }
    return models;
  });
}

std::optional<std::string> name_of_snapshot(const fs::path& path) {
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  if (folder.parent_path().filename() != "snapshots") return std::nullopt;
  const auto repository = repository_of(folder.parent_path().parent_path().filename());
  return repository ? std::optional(repository->substr(repository->find('/') + 1)) : std::nullopt;
}

}  // namespace quire::hub
