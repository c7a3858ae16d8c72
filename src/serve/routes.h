// The paths: who may call what, and which function answers. Turns what functions throw into error bodies, counts
// answers, and asks for the key. Functions that may take a while run on worker threads.
//
// Without a key: /, /health, /health_generate, and /metrics unless it has a key of its own. Keys are compared in
// constant time.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "http/exchange.h"
#include "serve/call.h"
#include "serve/service.h"

namespace quire::serve {

struct ApiKey {
  std::string key;
  std::string salt = {};  // Caller::salt
};

struct RouteOptions {
  std::vector<ApiKey> keys = {};  // none: everyone may call
  std::string admin_key = {};     // for what concerns all callers (caller.h), and for everything else, too
  std::string metrics_key = {};
  std::string allow_origin = {};  // whose pages may call, beside the server's own: "https://chat.example", or "*"
  int workers = 2;                // threads for what comes before an answer
  OnAnswered on_answered = {};    // for logs
};

class Routes {
 public:
  explicit Routes(RouteOptions options);
  ~Routes();
  // While there is no service, the model loads: /health and all calls that need it answer 503. From any thread.
  void set_service(Service* service);
  void handle(std::shared_ptr<http::Exchange> exchange);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::serve
