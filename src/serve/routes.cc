#include "serve/routes.h"

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"
#include "serve/access.h"
#include "serve/api_error.h"
#include "serve/endpoints.h"
#include "serve/page.h"
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

bool wants_page(const http::Request& request) {
  return request.path == "/" && (request.method == "GET" || request.method == "HEAD");
}

http::Headers headers_for_origin(const http::Request& request, const std::string& allowed) {
  const std::string_view origin = request.header("origin");
  if (allowed.empty() || origin.empty() || (allowed != "*" && origin != allowed)) return {};
  return {{"access-control-allow-origin", allowed}, {"vary", "origin"}};
}

// A browser asks before it lets another server's page call.
http::Response preflight() {
  return {.status = 204,
          .body = {},
          .headers = {{"access-control-allow-methods", "GET, POST"},
                      {"access-control-allow-headers", "authorization, content-type, x-api-key"},
                      {"access-control-max-age", "600"}}};
}

}  // namespace

namespace {

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

}  // namespace

struct Routes::Impl {
  explicit Impl(RouteOptions given)
      : options(std::move(given)), reports(std::make_shared<Reports>(options.on_answered)), workers(options.workers) {}

  void route(const std::shared_ptr<Call>& call);
  void start(const std::shared_ptr<Call>& call, const Endpoint& endpoint);
  Caller checked_caller(const http::Request& request, Access access) const;
  void answer(const std::shared_ptr<Call>& call, const Endpoint& endpoint, const Caller& caller);

  const RouteOptions options;
  const std::shared_ptr<Reports> reports;
  std::atomic<Service*> service = nullptr;
  Workers workers;  // its threads use all of this, so they end first
};

namespace {

// Runs a function that answers the call; what it throws becomes an answer.
template <class Body>
void guarded(const std::shared_ptr<Call>& call, Interface interface, Body&& body) {
  const auto fail = [&](const ApiError& error) {
    if (call->begun()) throw;  // too late for another answer: the connection is cut
    call->respond(error_response(error, interface));
  };
  try {
    body();
  } catch (const ApiError& error) {
    fail(error);
  } catch (const std::exception& error) {
    call->note_failure(error.what());
    fail(ApiError(500, "the server failed at this request"));
  }
}

}  // namespace

void Routes::Impl::route(const std::shared_ptr<Call>& call) {
  const http::Request& request = call->request();
  if (request.method == "OPTIONS" && !options.allow_origin.empty()) return call->respond(preflight());
  if (wants_page(request)) return call->respond(page());
  if (const Endpoint* endpoint = endpoint_for(request)) return start(call, *endpoint);
  const std::string methods = methods_of(request.path);
  call->respond(methods.empty() ? not_found(request) : wrong_method(request, methods));
}

void Routes::Impl::start(const std::shared_ptr<Call>& call, const Endpoint& endpoint) {
  Caller caller;
  guarded(call, endpoint.interface, [&] {
    caller = checked_caller(call->request(), endpoint.access);
    if (!service) throw ApiError(503, "the model is still being loaded");
  });
  if (call->begun()) return;
  if (endpoint.effort == Effort::quick) return answer(call, endpoint, caller);
  const bool taken = workers.run([this, call, &endpoint, caller] {
    try {
      answer(call, endpoint, caller);
    } catch (...) {  // the exchange knows what to do with it, on its own thread
      call->post([failure = std::current_exception()] { std::rethrow_exception(failure); });
    }
  });
  if (!taken) call->respond(error_response(ApiError(503, "too many calls wait to be read"), endpoint.interface));
}

void Routes::Impl::answer(const std::shared_ptr<Call>& call, const Endpoint& endpoint, const Caller& caller) {
  try {
    guarded(call, endpoint.interface, [&] { endpoint.answer(call, *service, caller); });
  } catch (...) {  // jobs that were started must hear of their end all the same
    call->release();
    throw;
  }
  call->release();
}

Caller Routes::Impl::checked_caller(const http::Request& request, Access access) const {
  if (access == Access::open) return {};
  if (access == Access::metrics_key) {
    if (options.metrics_key.empty() || equal_in_constant_time(presented_key(request), options.metrics_key)) return {};
    throw ApiError(401, "this needs the server's metrics key, as Authorization: Bearer KEY", "", "invalid_api_key");
  }
  if (options.keys.empty()) return {};
  if (const auto caller = caller_with(presented_key(request), options.keys)) return *caller;
  throw ApiError(401, "this needs an API key that the server knows, as Authorization: Bearer KEY", "",
                 "invalid_api_key");
}

Routes::Routes(RouteOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Routes::~Routes() { impl_->reports->close(); }

void Routes::set_service(Service* service) {
  impl_->reports->set_service(service);
  impl_->service = service;
}

void Routes::handle(std::shared_ptr<http::Exchange> exchange) {
  const http::Headers headers = headers_for_origin(exchange->request(), impl_->options.allow_origin);
  const auto report = [reports = impl_->reports](const Answered& answered) { reports->answered(answered); };
  impl_->route(Call::watch(std::move(exchange), headers, report));
}

}  // namespace quire::serve
