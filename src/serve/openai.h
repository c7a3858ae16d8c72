// OpenAI's interface: the calls under /v1. Each function answers its exchange, now or as tokens come, or throws
// ApiError before it has answered anything.
#pragma once
#include <memory>

#include "http/exchange.h"
#include "serve/caller.h"
#include "serve/service.h"

namespace quire::serve {

void chat_completions(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller);
void completions(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller);
void embeddings(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller);
void models(std::shared_ptr<http::Exchange> exchange, Service& service);  // /v1/models and /v1/models/NAME

}  // namespace quire::serve
