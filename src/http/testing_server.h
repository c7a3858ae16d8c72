// For tests: a started server, exchanges that are held for the test to answer, and patience.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "http/server.h"

namespace quire::http {

class TestingServer {
 public:
  explicit TestingServer(Handler handler, const ServerOptions& options = {}, Hooks hooks = {})
      : server_(std::make_unique<Server>(options, std::move(handler), std::move(hooks))) {
    server_->start();
  }
  Server* operator->() { return server_.get(); }
  uint16_t port() const { return server_->port(); }

 private:
  std::unique_ptr<Server> server_;
};

// Declare it before the server whose handler it gives.
class Held {
 public:
  Handler handler() {
    return [this](std::shared_ptr<Exchange> exchange) {
      const std::lock_guard lock(mutex_);
      exchanges_.push_back(std::move(exchange));
      arrived_.notify_one();
    };
  }
  std::shared_ptr<Exchange> next() {  // in order of arrival
    std::unique_lock lock(mutex_);
    check(arrived_.wait_for(lock, std::chrono::seconds(10), [&] { return !exchanges_.empty(); }), "no request came");
    std::shared_ptr<Exchange> exchange = std::move(exchanges_.front());
    exchanges_.pop_front();
    return exchange;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<Exchange>> exchanges_;
};

inline bool soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return holds();
}

}  // namespace quire::http
