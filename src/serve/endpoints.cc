#include "serve/endpoints.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "base/check.h"
#include "serve/openai.h"
#include "serve/page.h"
#include "serve/sglang.h"

namespace quire::serve {
namespace {

using Shared = std::shared_ptr<http::Exchange>;

template <void (*function)(Shared, Service&)>
void for_anyone(Shared exchange, Service& service, const Caller&) {
  function(std::move(exchange), service);
}

// Asked once each: the answer's two halves must agree while the server begins to drain.
void health(Shared exchange, Service& service, const Caller&) {
  const bool draining = service.draining(), works = service.works();
  const char* status = draining ? "draining" : works ? "ok" : "broken";
  exchange->respond({.status = !draining && works ? 200 : 503, .body = cat(R"({"status":")", status, R"("})")});
}

void metrics(Shared exchange, Service& service, const Caller&) {
  exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = service.metrics().exposition(service.stats(), service.gpu_memory())});
}

void show_page(Shared exchange) { exchange->respond(page()); }

constexpr auto kOpenai = Interface::openai;
constexpr auto kSglang = Interface::sglang;
constexpr auto kQuick = Effort::quick;
constexpr auto kLong = Effort::long_one;
constexpr size_t kPrompts = SIZE_MAX;  // the server's own limit: how much of a text is read depends on the model
constexpr size_t kTexts = 2 << 20;     // all of it is tokenized, whatever the model's context
constexpr size_t kTokenIds = 8 << 20;  // of as many tokens as a body may have values

const Endpoint kEndpoints[] = {
    {"GET", "/", Access::open, kSglang, kQuick, nullptr, 64 << 10, show_page},
    {"GET", "/health", Access::open, kSglang, kQuick, health},
    {"GET", "/health_generate", Access::open, kSglang, kQuick,
     [](Shared exchange, Service& service, const Caller&) { health_generate(std::move(exchange), service); }},
    {"GET", "/metrics", Access::metrics_key, kSglang, kQuick, metrics},

    {"POST", "/v1/chat/completions", Access::key, kOpenai, kLong, chat_completions, kPrompts},
    {"POST", "/v1/completions", Access::key, kOpenai, kLong, completions, kPrompts},
    {"POST", "/v1/embeddings", Access::key, kOpenai, kLong, embeddings, kPrompts},
    {"GET", "/v1/models", Access::key, kOpenai, kQuick, for_anyone<models>},
    {"GET", "/v1/models/", Access::key, kOpenai, kQuick, for_anyone<models>},

    {"POST", "/generate", Access::key, kSglang, kLong, generate, kPrompts},
    {"PUT", "/generate", Access::key, kSglang, kLong, generate, kPrompts},
    {"POST", "/tokenize", Access::key, kSglang, kLong, for_anyone<tokenize>, kTexts},
    {"POST", "/v1/tokenize", Access::key, kSglang, kLong, for_anyone<tokenize>, kTexts},
    {"POST", "/detokenize", Access::key, kSglang, kLong, for_anyone<detokenize>, kTokenIds},
    {"POST", "/v1/detokenize", Access::key, kSglang, kLong, for_anyone<detokenize>, kTokenIds},
    {"GET", "/model_info", Access::key, kSglang, kQuick, for_anyone<model_info>},
    {"GET", "/get_model_info", Access::key, kSglang, kQuick, for_anyone<model_info>},
    {"GET", "/server_info", Access::key, kSglang, kQuick, for_anyone<server_info>},
    {"GET", "/get_server_info", Access::key, kSglang, kQuick, for_anyone<server_info>},
    {"GET", "/get_load", Access::key, kSglang, kQuick, for_anyone<get_load>},
    {"GET", "/v1/loads", Access::key, kSglang, kQuick, for_anyone<loads>},
    {"POST", "/flush_cache", Access::key, kSglang, kQuick, flush_cache},
    {"POST", "/abort_request", Access::key, kSglang, kQuick, abort_request},
};

bool has_path(const Endpoint& endpoint, std::string_view path) {
  const bool whole_folder = endpoint.path.size() > 1 && endpoint.path.ends_with('/');
  return whole_folder ? path.starts_with(endpoint.path) : path == endpoint.path;
}

}  // namespace

Interface interface_of(std::string_view path) {
  for (const Endpoint& endpoint : kEndpoints)
    if (has_path(endpoint, path)) return endpoint.interface;
  return path.starts_with("/v1/") ? kOpenai : kSglang;
}

std::string methods_of(std::string_view path) {
  std::set<std::string_view> methods;
  for (const Endpoint& endpoint : kEndpoints)
    if (has_path(endpoint, path)) methods.insert(endpoint.method);
  if (methods.contains("GET")) methods.insert("HEAD");
  std::string list;
  for (const std::string_view method : methods) list += cat(list.empty() ? "" : ", ", method);
  return list;
}

const Endpoint* endpoint_for(const http::Request& request) {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const Endpoint& endpoint : kEndpoints)
    if (endpoint.method == method && has_path(endpoint, request.path)) return &endpoint;
  return nullptr;
}

std::string_view counted_path(std::string_view path) {
  const auto known = std::find_if(std::begin(kEndpoints), std::end(kEndpoints),
                                  [&](const Endpoint& endpoint) { return has_path(endpoint, path); });
  if (known == std::end(kEndpoints)) return "other";
  return known->path.size() > 1 && known->path.ends_with('/') ? known->path.substr(0, known->path.size() - 1)
                                                              : known->path;
}

}  // namespace quire::serve
