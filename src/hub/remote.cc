#include "hub/remote.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/strict_json.h"
#include "hub/retry.h"

namespace quire::hub {
namespace {

constexpr size_t kLongestListing = 64 << 20;
constexpr int kListingDepth = 64;

bool means_later(int status) { return status == 408 || status == 429 || status >= 500; }

std::optional<std::string> etag_of(const ResponseHead& head) {
  const auto linked = head.header("x-linked-etag");
  const auto own = linked ? linked : head.header("etag");
  return own ? std::optional(plain_etag(*own)) : std::nullopt;
}

// Whether a redirect already says what lies where it leads. A plain ETag may be that of a step on the way, at home.
bool tells_of_bytes(const ResponseHead& head, bool stays_home) {
  return head.header("x-linked-etag") || (!stays_home && head.header("etag"));
}

// Where the hub only points to the bytes, the length of its own answer says nothing.
std::optional<int64_t> size_of(const ResponseHead& head) {
  if (const auto linked = head.header("x-linked-size")) return parse_size(*linked);
  return head.is_redirect() ? std::nullopt : head.content_length();
}

// Another part than was asked for, or none. (All of the file from its beginning is fine, too.)
bool refuses_to_continue(const ResponseHead& head, int64_t start, int64_t bytes) {
  if (head.status != 206) return head.status == 416;
  return parse_content_range(head.header("content-range").value_or("")) != std::pair(start, bytes);
}

// It becomes a file's name in the cache, beside those of files that are on their way.
bool is_plain_etag(const std::string& etag) {
  constexpr const char* kAllowed = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_.";
  return !etag.empty() && etag.size() <= 200 && etag.find_first_not_of(kAllowed) == etag.npos && etag.front() != '.' &&
         !etag.ends_with(".incomplete");
}

}  // namespace

Listing parse_listing(std::string_view text) {
  const nlohmann::json json = parse_strict_json(text, kListingDepth);
  const auto commit = json.find("sha"), siblings = json.find("siblings");
  check(commit != json.end() && commit->is_string() && is_commit(commit->get_ref<const std::string&>()),
        "names no commit");
  check(siblings != json.end() && siblings->is_array(), "lists no files");
  Listing listing{.commit = commit->get<std::string>(), .files = {}};
  for (const auto& sibling : *siblings) {
    const auto path = sibling.find("rfilename");
    if (path == sibling.end() || !path->is_string()) continue;
    if (is_plain_path(path->get_ref<const std::string&>())) listing.files.push_back(path->get<std::string>());
  }
  return listing;
}

Remote::Remote(const Settings& settings, const FetchEvents& events)
    : settings_(settings), events_(events), client_(settings) {}

ResponseHead Remote::call_until_answered(const HttpCall& call) {
  for (Retry retry;;) {
    std::string trouble;
    try {
      const ResponseHead head = client_.call(call);
      if (!means_later(head.status)) return head;
      trouble = cat(settings_.endpoint.host, " answers with status ", head.status);
    } catch (const NetworkError& error) {
      if (!error.was_connected) throw;
      trouble = error.what();
    }
    const auto wait = retry.after_failure();
    if (!wait) throw NetworkError(trouble, true);
    events_.say(trouble + "; trying again");
    std::this_thread::sleep_for(*wait);
  }
}

// The hub's own word for what is wrong comes first: it answers 401 for models that are not there, lest it tell of
// others'.
void Remote::refuse(const ModelName& name, const std::string& path, const ResponseHead& head) const {
  const std::string code = head.header("x-error-code").value_or("");
  const std::string& model = name.repository;
  const std::string hub = settings_.endpoint.authority();
  if (code == "RevisionNotFound")
    throw CheckError(cat(hub, ": ", model, " has no revision ", in_quotes(name.revision_or_main())));
  if (code == "EntryNotFound" || (!path.empty() && head.status == 404))
    throw CheckError(cat(hub, ": ", model, " has no file ", in_quotes(path)));
  if (code == "GatedRepo" || head.status == 403)
    throw CheckError(cat(hub, " keeps ", model, " for those who accept its terms: do so at ",
                         to_string(settings_.endpoint), "/", model, ", then set HF_TOKEN to a token of yours"));
  if (head.status == 401 && code != "RepoNotFound" && !settings_.token.empty())
    throw CheckError(cat(hub, " does not accept the token (HF_TOKEN, or the file of a login) for ", model));
  if (head.status == 401 || head.status == 404)
    throw NoSuchModel(
        cat(hub, " has no model ", model, ", or it is private: ",
            settings_.token.empty() ? "then HF_TOKEN must be set" : "the token (HF_TOKEN) may not read it"));
  throw CheckError(cat(hub, " answers with status ", head.status, " for ", model,
                       path.empty() ? "" : cat(", file ", in_quotes(path))));
}

Listing Remote::list(const ModelName& name) {
  std::string text;
  HttpCall call{.url = settings_.endpoint, .token = settings_.token, .follows = {}, .on_head = {}, .on_body = {}};
  call.url.target += cat("/api/models/", name.repository, "/revision/", encoded(name.revision_or_main(), false));
  call.on_head = [&](const ResponseHead&) { text.clear(); };
  call.on_body = [&](std::string_view part) {
    check(text.size() + part.size() <= kLongestListing, "the list of ", name.repository, "'s files is too long");
    text += part;
  };
  const ResponseHead head = call_until_answered(call);
  if (head.status != 200) refuse(name, "", head);
  try {
    return parse_listing(text);
  } catch (const CheckError& error) {
    throw CheckError(cat(settings_.endpoint.authority(),
                         " does not answer as a hub does (HF_ENDPOINT): what it says of ", name.repository, " ",
                         error.what()));
  }
}

Url Remote::url_of(const ModelName& name, const std::string& commit, const std::string& path) const {
  Url url = settings_.endpoint;
  url.target += cat("/", name.repository, "/resolve/", commit, "/", encoded(path, true));
  return url;
}

RemoteFile Remote::find(const ModelName& name, const std::string& commit, const std::string& path) {
  RemoteFile file{.path = path, .url = url_of(name, commit, path), .etag = {}, .bytes = 0};
  HttpCall call{
      .method = "HEAD", .url = file.url, .token = settings_.token, .follows = {}, .on_head = {}, .on_body = {}};
  call.follows = [&](const ResponseHead& head, const Url& to) {
    return !tells_of_bytes(head, to.same_origin(file.url));
  };
  const ResponseHead head = call_until_answered(call);
  if (head.status / 100 != 2 && !head.is_redirect()) refuse(name, path, head);
  const auto etag = etag_of(head);
  const auto bytes = size_of(head);
  check(etag && is_plain_etag(*etag) && bytes, settings_.endpoint.authority(),
        " does not answer as a hub does: ", in_quotes(path), " of ", name.repository, " has no usable ",
        bytes ? "ETag" : "size");
  file.etag = *etag;
  file.bytes = *bytes;
  return file;
}

void Remote::read(const ModelName& name, const RemoteFile& file, int64_t start,
                  const std::function<void(int64_t)>& on_start, const std::function<void(std::string_view)>& on_bytes) {
  HttpCall call{.url = file.url, .token = settings_.token, .follows = {}, .on_head = {}, .on_body = on_bytes};
  if (start > 0) call.headers.emplace_back("Range", cat("bytes=", start, "-"));
  call.on_head = [&](const ResponseHead& head) {
    if (means_later(head.status)) throw NetworkError(cat("the server answers with status ", head.status), true);
    if (start > 0 && refuses_to_continue(head, start, file.bytes)) {
      on_start(0);
      throw NetworkError(cat("the server does not continue the file at ", start), true);
    }
    if (head.status == 206 && start > 0) return on_start(start);
    if (head.status != 200) refuse(name, file.path, head);
    on_start(0);
    const int64_t length = head.content_length().value_or(file.bytes);
    check(length == file.bytes, file.path, " was announced with ", file.bytes, " bytes, but has ", length,
          ": it is thrown away");
  };
  client_.call(call);
}

}  // namespace quire::hub
