// SGLang's own interface, and what its router asks a worker. Each function answers its exchange, now or as tokens come,
// or throws ApiError before it has answered anything.
#pragma once
#include <chrono>
#include <memory>

#include "http/exchange.h"
#include "serve/caller.h"
#include "serve/service.h"

namespace quire::serve {

void generate(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller);
// 200 as soon as the engine has computed something, 503 when it has not within that time (SGLang's).
void health_generate(std::shared_ptr<http::Exchange> exchange, Service& service,
                     std::chrono::milliseconds most = std::chrono::seconds(20));
void tokenize(std::shared_ptr<http::Exchange> exchange, Service& service);
void detokenize(std::shared_ptr<http::Exchange> exchange, Service& service);
void model_info(std::shared_ptr<http::Exchange> exchange, Service& service);
void server_info(std::shared_ptr<http::Exchange> exchange, Service& service);
void get_load(std::shared_ptr<http::Exchange> exchange, Service& service);  // an array, one worker
void loads(std::shared_ptr<http::Exchange> exchange, Service& service);     // /v1/loads
void flush_cache(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller);
// By the beginning of their names the caller's own jobs, or everybody's for those who may manage.
void abort_request(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller);

}  // namespace quire::serve
