#include "serve/routes.h"

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"
#include "serve/api_error.h"
#include "serve/browser_guard.h"
#include "serve/call_weight.h"
#include "serve/caller.h"
#include "serve/endpoints.h"
#include "serve/workers.h"

namespace quire::serve {
namespace {

http::Response not_found(const http::Request& request) {
  const std::string message = cat("there is no ", in_quotes(request.path),
                                  " here; there are /v1/chat/completions, /v1/completions, /generate and others, "
                                  "and a page at /");
  return error_response(ApiError(404, message), interface_of(request.path));
}

http::Response wrong_method(const http::Request& request, const std::string& allowed) {
  const ApiError error(405, cat(request.path, " takes ", allowed, ", not ", in_quotes(request.method, 20)));
  http::Response response = error_response(error, interface_of(request.path));
  response.headers.emplace_back("allow", allowed);
  return response;
}

// Who waits in turns with others: the key's owner or, where no key is asked for, the network.
std::string turn_of(const Caller& caller, const http::Request& request) {
  return caller.name.empty() ? request.network : "key " + caller.name;
}

// Where answers are counted. Some end after the routes are gone: those go nowhere.
class Reports {
 public:
  explicit Reports(OnAnswered on_answered) : on_answered_(std::move(on_answered)) {}

  void set_service(Service* service) {
    const std::unique_lock lock(mutex_);
    service_ = service;
  }
  void close() {
    const std::unique_lock lock(mutex_);
    service_ = nullptr;
    on_answered_ = nullptr;
  }
  void answered(const Answered& answered) {
    const std::shared_lock lock(mutex_);
    if (service_) service_->metrics().http_answer(answered.path, answered.status);
    if (on_answered_) on_answered_(answered);
  }

 private:
  std::shared_mutex mutex_;
  Service* service_ = nullptr;
  OnAnswered on_answered_;
};

// What the head of a request tells: that it is refused, or who answers it for whom.
struct Judgement {
  std::optional<http::Response> refusal = {};
  const Endpoint* endpoint = nullptr;
  Caller caller = {};
};

// Runs a function that answers the call; what it throws becomes an answer.
template <class Body>
void guarded(const std::shared_ptr<WatchedExchange>& exchange, Interface interface, Body&& body) {
  const auto fail = [&](const ApiError& error) {
    if (exchange->begun()) throw;  // too late for another answer: the connection is cut
    exchange->respond(error_response(error, interface));
  };
  try {
    body();
  } catch (const ApiError& error) {
    fail(error);
  } catch (const std::exception& error) {
    exchange->note([&](Answered& so_far) { so_far.failure = error.what(); });
    fail(ApiError(500, kServerFailed));
  }
}

}  // namespace

struct Routes::Impl {
  explicit Impl(RouteOptions given)
      : options(std::move(given)),
        browsers(options.host, options.allow_origins),
        reports(std::make_shared<Reports>(options.on_answered)),
        workers(options.workers) {}

  Judgement judged(const http::Request& head) const;
  void start(const std::shared_ptr<WatchedExchange>& exchange, const Endpoint& endpoint, const Caller& caller);
  Caller checked_caller(const http::Request& request, Access access) const;
  void answer(const std::shared_ptr<WatchedExchange>& exchange, const Endpoint& endpoint, const Caller& caller);

  const RouteOptions options;
  const BrowserGuard browsers;
  const std::shared_ptr<Reports> reports;
  std::atomic<Service*> service = nullptr;
  Workers workers;  // its threads use all of this, so they end first
};

Judgement Routes::Impl::judged(const http::Request& head) const {
  const Interface interface = interface_of(head.path);
  try {
    if (const auto refused = browsers.refusal(head)) throw *refused;
    if (auto answer = browsers.preflight(head)) return {.refusal = std::move(answer)};
    const Endpoint* endpoint = endpoint_for(head);
    const std::string methods = endpoint ? "" : methods_of(head.path);
    if (!endpoint) return {.refusal = methods.empty() ? not_found(head) : wrong_method(head, methods)};
    Caller caller = checked_caller(head, endpoint->access);
    if (const auto refused = refusal_of_type(head)) throw *refused;
    return {.endpoint = endpoint, .caller = std::move(caller)};
  } catch (const ApiError& error) {
    return {.refusal = error_response(error, interface)};
  }
}

void Routes::Impl::start(const std::shared_ptr<WatchedExchange>& exchange, const Endpoint& endpoint,
                         const Caller& caller) {
  if (endpoint.without_model) return endpoint.without_model(exchange);
  const auto refuse = [&](const char* why) {
    exchange->respond(error_response(ApiError(503, why), endpoint.interface));
  };
  if (!service) return refuse("the model is still being loaded");
  if (endpoint.effort == Effort::quick) return answer(exchange, endpoint, caller);
  const http::Request& request = exchange->request();
  const bool taken = workers.run(weight_of(request), turn_of(caller, request), [this, exchange, &endpoint, caller] {
    if (exchange->gone()) return;  // nobody would hear the answer
    try {
      answer(exchange, endpoint, caller);
    } catch (...) {  // the exchange knows what to do with it, on its own thread
      exchange->post([failure = std::current_exception()] { std::rethrow_exception(failure); });
    }
  });
  if (!taken) refuse("too many calls wait to be read");
}

void Routes::Impl::answer(const std::shared_ptr<WatchedExchange>& exchange, const Endpoint& endpoint,
                          const Caller& caller) {
  try {
    guarded(exchange, endpoint.interface, [&] { endpoint.answer(exchange, *service, caller); });
  } catch (...) {  // jobs that were started must hear of their end all the same
    exchange->release();
    throw;
  }
  exchange->release();
}

Caller Routes::Impl::checked_caller(const http::Request& request, Access access) const {
  if (access == Access::open) return {};
  if (access == Access::metrics_key) {
    if (options.metrics_key.empty() || equal_in_constant_time(presented_key(request), options.metrics_key)) return {};
    throw ApiError(401, "this needs the server's metrics key, as Authorization: Bearer KEY", "", "invalid_api_key");
  }
  if (const auto caller = caller_with(presented_key(request), options.keys, options.admin_key)) return *caller;
  throw ApiError(401, "this needs an API key that the server knows, as Authorization: Bearer KEY", "",
                 "invalid_api_key");
}

Routes::Routes(RouteOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Routes::~Routes() { impl_->reports->close(); }

void Routes::set_service(Service* service) {
  impl_->reports->set_service(service);
  impl_->service = service;
}

std::optional<size_t> Routes::judge(const http::Request& head) const {
  const Judgement judgement = impl_->judged(head);
  if (judgement.refusal) return std::nullopt;
  return judgement.endpoint->body_bytes;
}

void Routes::handle(std::shared_ptr<http::Exchange> given) {
  const http::Headers headers = impl_->browsers.headers(given->request());
  const auto report = [reports = impl_->reports](const Answered& answered) { reports->answered(answered); };
  const auto exchange = WatchedExchange::watch(std::move(given), headers, report);
  Judgement judgement = impl_->judged(exchange->request());
  exchange->note([&](Answered& so_far) { so_far.caller = judgement.caller.name; });
  if (judgement.refusal) return exchange->respond(*std::move(judgement.refusal));
  impl_->start(exchange, *judgement.endpoint, judgement.caller);
}

void Routes::report(const http::Refused& refused) const {
  impl_->reports->answered({.method = refused.method,
                            .path = refused.path,
                            .peer = refused.peer,
                            .id = refused.id,
                            .status = refused.status,
                            .reason = refused.reason});
}

}  // namespace quire::serve
