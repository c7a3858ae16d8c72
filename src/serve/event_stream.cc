#include "serve/event_stream.h"

#include <utility>

namespace quire::serve {

http::Response event_stream_head() {
  return {.content_type = "text/event-stream", .body = {}, .headers = {{"cache-control", "no-cache"}}};
}

std::string event(std::string_view json) {
  std::string text;
  text.reserve(json.size() + 8);
  return text.append("data: ").append(json).append("\n\n");
}

void beat_while_waiting(Service& service, const std::weak_ptr<http::Exchange>& exchange, std::function<bool()> beat) {
  const std::chrono::milliseconds interval = service.options().heartbeat;
  if (interval.count() == 0) return;
  service.later(interval, [&service, exchange, beat = std::move(beat)] {
    const auto alive = exchange.lock();
    if (!alive) return;
    alive->post([&service, exchange, beat] {
      if (beat()) beat_while_waiting(service, exchange, beat);
    });
  });
}

}  // namespace quire::serve
