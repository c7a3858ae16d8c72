#include "serve/heartbeat.h"

#include <utility>

namespace quire::serve {

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
