#include "hub/hub.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/size_text.h"
#include "base/strict_json.h"
#include "hub/cache.h"
#include "hub/choose_file.h"
#include "hub/download.h"
#include "hub/remote.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;

fs::path path_of(const ModelFiles& files, const fs::path& snapshot) {
  return files.gguf.empty() ? snapshot : snapshot / files.gguf;
}

ModelFiles choose(const ModelName& name, const std::vector<std::string>& paths, const FetchEvents& events) {
  ModelFiles files;
  try {
    files = choose_files(paths, name.file);
  } catch (const CheckError& error) {
    throw CheckError(cat(name.repository, " ", error.what()));
  }
  if (files.of_many > 1)
    events.say(cat(name.repository, ": taking ", files.gguf, ", one of ", files.of_many, " GGUF files; ",
                   name.repository, ":FILE takes another"));
  return files;
}

// --- without the hub

// Another program may have fetched only some of a sharded model's files.
bool has_all_shards(const fs::path& snapshot) {
  std::error_code missing;
  if (fs::exists(snapshot / "model.safetensors", missing)) return true;
  std::ifstream file(snapshot / "model.safetensors.index.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const nlohmann::json index = parse_strict_json(text, 8);
  const auto map = index.find("weight_map");
  check(map != index.end() && map->is_object(), "model.safetensors.index.json has no weight_map");
  return std::all_of(map->begin(), map->end(), [&](const nlohmann::json& shard) {
    if (!shard.is_string()) return false;
    const auto& path = shard.get_ref<const std::string&>();
    return is_plain_path(path) && fs::exists(snapshot / path);
  });
}

// None: it is not there, or not all of it.
std::optional<fs::path> find_in_cache(const ModelName& name, const RepositoryCache& cache, const FetchEvents& events) {
  const std::optional<std::string> commit = cache.commit_of(name.revision_or_main());
  if (!commit) return std::nullopt;
  try {
    const ModelFiles files = choose(name, cache.files_of(*commit), events);
    if (files.gguf.empty() && !has_all_shards(cache.snapshot(*commit))) return std::nullopt;
    return path_of(files, cache.snapshot(*commit));
  } catch (const CheckError&) {
    return std::nullopt;
  }
}

fs::path from_cache_offline(const ModelName& name, const Settings& settings, const RepositoryCache& cache,
                            const FetchEvents& events) {
  if (const auto found = find_in_cache(name, cache, events)) return *found;
  throw NoSuchModel(cat(to_string(name), " is not in the cache ", settings.cache.string(),
                        ", or not all of it, and HF_HUB_OFFLINE forbids to fetch it"));
}

fs::path from_cache_unreached(const ModelName& name, const RepositoryCache& cache, const FetchEvents& events,
                              const std::string& trouble) {
  const auto found = find_in_cache(name, cache, events);
  if (!found)
    throw NoSuchModel(cat(to_string(name), " cannot be fetched: ", trouble,
                          " (no network? a proxy is named by https_proxy, another hub by HF_ENDPOINT)"));
  events.say(cat(trouble, "; using ", to_string(name), " as it is in the cache"));
  return *found;
}

// --- with the hub

void check_room(const std::vector<RemoteFile>& files, const RepositoryCache& cache, const Settings& settings,
                const ModelName& name) {
  int64_t needed = 0;
  for (const RemoteFile& file : files) {
    std::error_code missing;
    const uintmax_t there = fs::file_size(cache.incomplete(file.etag), missing);
    if (fs::exists(cache.blob(file.etag), missing)) continue;
    needed += file.bytes - (missing || there > static_cast<uintmax_t>(file.bytes) ? 0 : static_cast<int64_t>(there));
  }
  std::error_code unknown;
  const fs::space_info space = fs::space(cache.folder(), unknown);
  check(unknown || static_cast<uintmax_t>(needed) <= space.available, to_string(name), " takes ", size_text(needed),
        " in ", settings.cache.string(), ", which has ", size_text(static_cast<int64_t>(space.available)),
        " left; HF_HUB_CACHE names another folder");
}

void fetch_files(Remote& remote, const ModelName& name, const std::string& commit, const std::vector<RemoteFile>& files,
                 const RepositoryCache& cache, const FetchEvents& events) {
  FetchProgress progress;
  for (const RemoteFile& file : files) progress.total += file.bytes;
  int64_t before = 0;
  for (const RemoteFile& file : files) {
    progress.file = file.path;
    download(remote, name, file, cache, events, [&](int64_t done) {
      progress.done = before + done;
      events.progress(progress);
    });
    cache.link(commit, file.path, file.etag);
    before += file.bytes;
  }
}

fs::path from_hub(Remote& remote, const ModelName& name, const Listing& listing, const Settings& settings,
                  const RepositoryCache& cache, const FetchEvents& events) {
  const ModelFiles chosen = choose(name, listing.files, events);
  std::vector<RemoteFile> missing;
  for (const std::string& path : chosen.files)
    if (!cache.has_file(listing.commit, path)) missing.push_back(remote.find(name, listing.commit, path));
  if (!missing.empty()) {
    cache.make_folders();
    check_room(missing, cache, settings, name);
    fetch_files(remote, name, listing.commit, missing, cache, events);
  }
  cache.remember(name.revision_or_main(), listing.commit);
  return path_of(chosen, cache.snapshot(listing.commit));
}

}  // namespace

fs::path fetch_model(const ModelName& name, const Settings& settings, const FetchEvents& events) {
  const RepositoryCache cache(settings.cache, name.repository);
  if (settings.offline) return from_cache_offline(name, settings, cache, events);
  Remote remote(settings, events);
  Listing listing;
  try {
    listing = remote.list(name);
  } catch (const NetworkError& error) {
    return from_cache_unreached(name, cache, events, error.what());
  }
  return from_hub(remote, name, listing, settings, cache, events);
}

}  // namespace quire::hub
