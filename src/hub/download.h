// One file of a repository, from the hub into its blob: going on where an earlier try ended, whoever made it; one
// process at a time; kept only when its size and, where the ETag tells one, its hash are right.
//
// Errors   NetworkError: the transfer broke again and again; what has come is kept.
//          CheckError: wrong bytes, which are thrown away; a disk that is full, where what has come is kept.
#pragma once
#include <cstdint>
#include <functional>

#include "hub/cache.h"
#include "hub/fetch_events.h"
#include "hub/remote.h"

namespace quire::hub {

// on_done is told how many of the file's bytes are there, often.
void download(Remote& remote, const ModelName& name, const RemoteFile& file, const RepositoryCache& cache,
              const FetchEvents& events, const std::function<void(int64_t)>& on_done);

}  // namespace quire::hub
