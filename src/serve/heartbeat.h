// Signs of life in a stream whose first token is long in coming: proxies and clients take a silent connection for a dead
// one. A comment of server-sent events, which readers skip.
//
// A stream's head is sent with the first sign, so what fails until then has a status of its own, and what fails later,
// a wait that became too long say, is the stream's last event.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "http/exchange.h"
#include "serve/service.h"

namespace quire::serve {

inline constexpr std::string_view kHeartbeat = ": heartbeat\n\n";

// Calls beat in the exchange's order, as often as the service's options say, for as long as it returns true. beat must
// not keep the exchange alive.
void beat_while_waiting(Service& service, const std::weak_ptr<http::Exchange>& exchange, std::function<bool()> beat);

}  // namespace quire::serve
