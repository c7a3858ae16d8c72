#include <chrono>
#include <memory>
#include <utility>

#include "serve/api_error.h"
#include "serve/sglang.h"

namespace quire::serve {

namespace {

// Whether the engine still computes. One that has work proves it by its next step, so asking costs it nothing, however
// often strangers ask; one that has none is given a token to generate.
class HealthProbe : public std::enable_shared_from_this<HealthProbe> {
 public:
  HealthProbe(std::shared_ptr<http::Exchange> exchange, Service& service, std::chrono::milliseconds most)
      : exchange_(std::move(exchange)), service_(service), most_(most), steps_(service.stats().steps) {}

  void start() {
    const engine::EngineStats stats = service_.stats();
    if (stats.running + stats.queued == 0) generate();
    look_later();
  }

 private:
  void generate() {
    JobSpec job{.rid = service_.new_id("health-"), .request = {}};
    job.request.prompt = {0};
    job.request.sampling.temperature = 0;
    job.request.max_new_tokens = 1;
    service_.run(std::move(job), exchange_, [self = shared_from_this()](const Progress& progress) {
      if (progress.end) self->answer(progress.generated > 0 ? 200 : 503);
    });
  }

  void look_later() {
    constexpr std::chrono::milliseconds kBetween{100};
    service_.later(kBetween, [self = shared_from_this()] { self->exchange_->post([self] { self->look(); }); });
  }

  void look() {
    if (answered_) return;
    if (service_.stats().steps > steps_) return answer(200);
    if (std::chrono::steady_clock::now() - start_ > most_) return answer(503);
    look_later();
  }

  void answer(int status) {
    if (std::exchange(answered_, true)) return;
    exchange_->respond({.status = status, .content_type = "text/plain; charset=utf-8", .body = {}});
  }

  const std::shared_ptr<http::Exchange> exchange_;
  Service& service_;
  const std::chrono::milliseconds most_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const int64_t steps_;
  bool answered_ = false;
};

}  // namespace

void health_generate(std::shared_ptr<http::Exchange> exchange, Service& service, std::chrono::milliseconds most) {
  if (service.draining()) throw ApiError(503, "the server is shutting down");
  std::make_shared<HealthProbe>(std::move(exchange), service, most)->start();
}

}  // namespace quire::serve
