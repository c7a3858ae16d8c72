// The parts of an answer that is a stream, as server-sent events, alike in every interface; and signs of life in one
// whose first token is long in coming, since proxies and clients take a silent connection for a dead one: comments,
// which readers skip.
//
// A stream's head is sent with the first sign, so what fails until then has a status of its own, and what fails later,
// a wait that became too long say, is the stream's last event.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "http/exchange.h"
#include "serve/service.h"

namespace quire::serve {

http::Response event_stream_head();        // what start_stream() is given
std::string event(std::string_view json);  // data: ...
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n", kHeartbeat = ": heartbeat\n\n";

// Calls beat in the exchange's order, as often as the service's options say, for as long as it returns true. beat must
// not keep the exchange alive.
void beat_while_waiting(Service& service, const std::weak_ptr<http::Exchange>& exchange, std::function<bool()> beat);

}  // namespace quire::serve
