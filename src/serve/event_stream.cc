#include "serve/event_stream.h"

namespace quire::serve {

http::Response event_stream_head() {
  return {.content_type = "text/event-stream", .body = {}, .headers = {{"cache-control", "no-cache"}}};
}

std::string event(std::string_view json) {
  std::string text;
  text.reserve(json.size() + 8);
  return text.append("data: ").append(json).append("\n\n");
}

}  // namespace quire::serve
