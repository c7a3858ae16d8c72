// The paths: who may call what, and which function answers. Turns what functions throw into error bodies, counts
// answers, and asks for the key. Functions that may take a while run on worker threads.
//
// Without a key: /, /health, /health_generate, and /metrics unless it has a key of its own. Keys are compared in
// constant time. What the head of a request tells is judged before its body comes: path and method, key, length, and
// what browsers may not do (browser_guard.h).
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http/exchange.h"
#include "http/server.h"
#include "serve/caller.h"
#include "serve/service.h"
#include "serve/watched_exchange.h"

namespace quire::serve {

struct RouteOptions {
  std::vector<ApiKey> keys = {};  // none: everyone may call
  std::string admin_key = {};     // for what concerns all callers (caller.h), and for everything else, too
  std::string metrics_key = {};
  std::string host = {};                        // that the server listens on, for BrowserGuard
  std::vector<std::string> allow_origins = {};  // whose pages may call, beside the server's own
  int workers = 2;              // threads for what comes before an answer, for light and heavy calls each
  OnAnswered on_answered = {};  // for logs
};

class Routes {
 public:
  explicit Routes(RouteOptions options);
  ~Routes();
  // While there is no service, the model loads: /health and all calls that need it answer 503. From any thread.
  void set_service(Service* service);
  // What http::Server asks: how long the body may be, or none when handle() refuses the request whatever its body.
  std::optional<size_t> judge(const http::Request& head) const;
  void handle(std::shared_ptr<http::Exchange> exchange);
  void report(const http::Refused& refused) const;  // what never came this far is counted and logged, too

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::serve
