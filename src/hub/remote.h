// The hub's side, by Hugging Face's HTTP interface:
//
//   GET  ENDPOINT/api/models/ORG/NAME/revision/REVISION     the commit and the files
//   HEAD ENDPOINT/ORG/NAME/resolve/COMMIT/FILE              its ETag and size, mostly on a redirect to its bytes
//   GET  ENDPOINT/ORG/NAME/resolve/COMMIT/FILE              its bytes, from any place in it
//
// Answers that say "later" (429, 5xx) and connections that break are tried again; a hub that cannot be reached at all
// is not, before something has come from it.
//
// Errors   NetworkError: the hub was not reached, or did not hold out.
//          NoSuchModel: the hub has none of that name, or shows it only to others.
//          CheckError, one line with the model's name and what to do: no such revision or file; not allowed; an answer
//          that is none of a hub's.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/errors.h"
#include "hub/fetch_events.h"
#include "hub/http_client.h"
#include "hub/model_name.h"
#include "hub/settings.h"

namespace quire::hub {

struct Listing {
  std::string commit;
  std::vector<std::string> files;  // plain paths
};

struct RemoteFile {
  std::string path;
  Url url;
  std::string etag;  // a plain file name
  int64_t bytes;
};

class Remote {
 public:
  Remote(const Settings& settings, const FetchEvents& events);

  Listing list(const ModelName& name);
  RemoteFile find(const ModelName& name, const std::string& commit, const std::string& path);

  // The file's bytes from `start` on. on_start is told where the bytes that follow begin: at `start`, or at 0 when the
  // server does not continue files. One try: throws NetworkError when the transfer breaks, or has to begin at 0 next
  // time.
  void read(const ModelName& name, const RemoteFile& file, int64_t start, const std::function<void(int64_t)>& on_start,
            const std::function<void(std::string_view)>& on_bytes);

 private:
  ResponseHead call_until_answered(const HttpCall& call);
  [[noreturn]] void refuse(const ModelName& name, const std::string& path, const ResponseHead& head) const;
  Url url_of(const ModelName& name, const std::string& commit, const std::string& path) const;

  const Settings settings_;
  const FetchEvents events_;
  HttpClient client_;
};

// The answer to GET .../revision/...; paths that are not plain are left out. Throws CheckError for what is none.
Listing parse_listing(std::string_view text);

}  // namespace quire::hub
