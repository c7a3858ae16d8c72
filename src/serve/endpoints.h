// Which function answers which path, in which interface's form, for whom.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "http/exchange.h"
#include "serve/api_error.h"
#include "serve/caller.h"
#include "serve/service.h"

namespace quire::serve {

enum class Access : uint8_t { open, key, metrics_key };
enum class Effort : uint8_t { quick, long_one };  // long ones are not for io threads

struct Endpoint {
  std::string_view method, path;  // a path that ends with a slash stands for all that begin with it, "/" for itself
  Access access;
  Interface interface;
  Effort effort;
  void (*answer)(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller);
  size_t body_bytes = 64 << 10;                                      // most of a body; the server's limit holds, too
  void (*without_model)(std::shared_ptr<http::Exchange>) = nullptr;  // instead of answer: needs no service
};

const Endpoint* endpoint_for(const http::Request& request);  // null: none; HEAD is as GET
std::string methods_of(std::string_view path);               // "GET, HEAD"; "" when nothing is there
Interface interface_of(std::string_view path);               // whose errors callers of any path expect
// The endpoint's own name for it, where answers are counted: "other" for what is not there, so that strangers cannot
// make series.
std::string_view counted_path(std::string_view path);

}  // namespace quire::serve
