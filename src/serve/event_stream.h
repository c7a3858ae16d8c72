// The parts of an answer that is a stream, as server-sent events, alike in every interface.
#pragma once
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace quire::serve {

http::Response event_stream_head();        // what start_stream() is given
std::string event(std::string_view json);  // data: ...
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

}  // namespace quire::serve
