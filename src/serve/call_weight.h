// How much work a call is before its answer begins, as far as its bytes tell without being read: long bodies, and those
// that ask for something that has to be compiled, are heavy.
#pragma once
#include "http/exchange.h"
#include "serve/workers.h"

namespace quire::serve {

inline constexpr size_t kMostLightBytes = 64 << 10;  // some 16,000 tokens of text

Weight weight_of(const http::Request& request);

}  // namespace quire::serve
