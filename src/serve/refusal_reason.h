// Why a call was refused, for the log: what its caller was told, without what the caller had sent. Logs have no
// prompts, and a sentence about a wrong value may quote the beginning of one.
#pragma once
#include <string>

#include "http/exchange.h"

namespace quire::serve {

std::string refusal_reason(const http::Response& response);  // "" for what is no refusal, and no error body

}  // namespace quire::serve
