#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/fields.h"
#include "serve/request_reader.h"
#include "serve/sglang.h"
#include "serve/sglang_generate_request.h"
#include "serve/watched_exchange.h"

namespace quire::serve {

using nlohmann::ordered_json;

// Requests go on: what they hold stays until they are done with it.
void flush_cache(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller) {
  check_may_manage(caller, "flushing the cache");
  service.flush_cache();
  exchange->respond({.content_type = "text/plain; charset=utf-8", .body = "Cache flushed.\n"});
}

void abort_request(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller) {
  const ordered_json body = body_of(exchange->request());
  Ignored ignored(service.options().strict_fields);
  Fields fields(body, "", &ignored);
  const bool all = fields.boolean("abort_all").value_or(false);
  const std::string rid = fields.string("rid", kMostRidBytes).value_or("");
  fields.ignore("abort_message");
  fields.finish();
  note(*exchange, [&](Answered& so_far) { so_far.ignored = ignored.header(); });
  if (rid.empty() && !all) throw ApiError(400, "rid: expected the name of a request, or abort_all", "rid");
  if (all) check_may_manage(caller, "abort_all", "abort_all");
  const int aborted = service.abort(all ? "" : rid, caller.may_manage ? std::nullopt : std::optional(caller.key));
  exchange->respond({.body = cat(R"({"aborted":)", aborted, "}")});
}

}  // namespace quire::serve
