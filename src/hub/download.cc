#include "hub/download.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "hub/file_lock.h"
#include "hub/partial_file.h"
#include "hub/retry.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;

bool is_in_place(const fs::path& blob, int64_t bytes) {
  std::error_code missing;
  return fs::file_size(blob, missing) == static_cast<uintmax_t>(bytes) && !missing;
}

// Until all has come, or it breaks.
void read_rest(Remote& remote, const ModelName& name, const RemoteFile& file, PartialFile& partial,
               const std::function<void(int64_t)>& on_done) {
  const auto on_start = [&](int64_t start) {
    if (start == 0 && partial.done() > 0) partial.start_over();
  };
  remote.read(name, file, partial.done(), on_start, [&](std::string_view bytes) {
    check(static_cast<int64_t>(bytes.size()) <= partial.left(), file.path, " goes on after the ", file.bytes,
          " bytes that it was announced with");
    partial.append(bytes);
    on_done(partial.done());
  });
  if (partial.left() > 0) throw NetworkError(cat("the connection ended ", partial.left(), " bytes too early"), true);
}

void read_with_retries(Remote& remote, const ModelName& name, const RemoteFile& file, PartialFile& partial,
                       const FetchEvents& events, const std::function<void(int64_t)>& on_done) {
  Retry retry;
  int64_t furthest = partial.done();  // bytes that come again, because the server starts over, are no progress
  while (partial.left() > 0) {
    try {
      read_rest(remote, name, file, partial, on_done);
    } catch (const NetworkError& error) {
      if (partial.done() > furthest) retry.after_progress();
      furthest = std::max(furthest, partial.done());
      const auto wait = retry.after_failure();
      if (!wait) throw NetworkError(cat(file.path, ": ", error.what(), "; what has come is kept"), true);
      events.say(cat(file.path, ": ", error.what(), "; trying again"));
      std::this_thread::sleep_for(*wait);
    }
  }
}

}  // namespace

void download(Remote& remote, const ModelName& name, const RemoteFile& file, const RepositoryCache& cache,
              const FetchEvents& events, const std::function<void(int64_t)>& on_done) {
  cache.make_folders();
  const FileLock lock(cache.lock(file.etag),
                      [&] { events.say(cat("waiting for another process that fetches ", file.path)); });
  if (!is_in_place(cache.blob(file.etag), file.bytes)) {
    PartialFile partial(cache.incomplete(file.etag), file.etag, file.bytes);
    on_done(partial.done());
    read_with_retries(remote, name, file, partial, events, on_done);
    if (!partial.is_right()) {
      partial.throw_away();
      throw CheckError(cat(file.path, " is not what the hub announced: its hash is wrong, and it was thrown away"));
    }
    partial.move_to(cache.blob(file.etag));
  }
  on_done(file.bytes);
}

}  // namespace quire::hub
