// For tests: an exchange without a connection. It records the answer, its client can leave, and tasks that are posted
// run at once, on the thread that posts them, or when the test says so; never two at a time.
//
// Errors   as http::Exchange says: answering twice or writing outside of a stream throws CheckError.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "http/exchange.h"

namespace quire::serve::testing {

enum class Tasks : uint8_t { at_once, on_demand };

class TestingExchange : public http::Exchange {
 public:
  explicit TestingExchange(http::Request request = {}, Tasks tasks = Tasks::at_once)
      : request_(std::move(request)), tasks_at_once_(tasks == Tasks::at_once) {}

  // --- what handlers call

  const http::Request& request() const override { return request_; }

  void respond(http::Response response) override {
    const std::lock_guard lock(mutex_);
    begin(std::move(response));
    end();
  }

  void start_stream(http::Response head) override {
    const std::lock_guard lock(mutex_);
    begin(std::move(head));
    streams_ = true;
    if (!response_.body.empty()) parts_.push_back(response_.body);
  }

  void write(std::string part) override {
    const std::lock_guard lock(mutex_);
    check(streams_ && !ended_, "a part outside of a stream");
    if (gone_) return;
    response_.body += part;
    parts_.push_back(std::move(part));
    changed_.notify_all();
  }

  void finish() override {
    const std::lock_guard lock(mutex_);
    check(streams_ && !ended_, "the end of no stream");
    end();
  }

  void on_gone(std::function<void()> action) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) return when_gone_.push_back(std::move(action));
    }
    action();
  }

  void post(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(task));
    }
    if (tasks_at_once_) run_tasks();
  }

  // --- what tests call

  void leave() {
    std::vector<std::function<void()>> actions;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      actions.swap(when_gone_);
    }
    for (const auto& action : actions) action();
  }

  // All that is posted, and what that posts. Does nothing while another thread does it.
  void run_tasks() {
    std::unique_lock lock(mutex_);
    if (std::exchange(runs_tasks_, true)) return;
    while (!posted_.empty()) {
      const std::function<void()> task = std::move(posted_.front());
      posted_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
    runs_tasks_ = false;
  }

  bool wait_until_ended(std::chrono::seconds most = std::chrono::seconds(60)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return ended_; });
  }
  bool wait_for_parts(size_t count, std::chrono::seconds most = std::chrono::seconds(60)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return parts_.size() >= count; });
  }

  bool begun() const {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  bool ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  bool streams() const {
    const std::lock_guard lock(mutex_);
    return streams_;
  }
  std::vector<std::string> parts() const {
    const std::lock_guard lock(mutex_);
    return parts_;
  }
  http::Response response() const {  // of a stream: with all parts so far as its body
    const std::lock_guard lock(mutex_);
    return response_;
  }
  int status() const { return response().status; }
  std::string body() const { return response().body; }

 private:
  void begin(http::Response response) {
    check(!std::exchange(begun_, true), "a second answer");
    response_ = std::move(response);
  }
  void end() {
    ended_ = true;
    changed_.notify_all();
  }

  const http::Request request_;
  const bool tasks_at_once_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false, ended_ = false, streams_ = false, gone_ = false, runs_tasks_ = false;
  http::Response response_;
  std::vector<std::string> parts_;
  std::vector<std::function<void()>> when_gone_;
  std::deque<std::function<void()>> posted_;
};

inline std::shared_ptr<TestingExchange> posted(std::string path, std::string body) {
  http::Request request;
  request.method = "POST";
  request.path = std::move(path);
  request.body = std::move(body);
  return std::make_shared<TestingExchange>(std::move(request));
}
inline std::shared_ptr<TestingExchange> got(std::string path, std::string query = {}) {
  http::Request request;
  request.method = "GET";
  request.path = std::move(path);
  request.query = std::move(query);
  return std::make_shared<TestingExchange>(std::move(request));
}

}  // namespace quire::serve::testing
