// A call that is being answered: the client's exchange, watched. It notes how the answer begins and when it is
// complete, and whatever else of it the log should say, and reports it once.
//
// Deliveries to the exchange (post) are held back while the function that answers it still runs, so that such functions
// may run on threads of their own and yet need no locks against what they started.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "http/exchange.h"

namespace quire::serve {

struct Answered {
  std::string method = {}, path = {}, peer = {};
  std::string id = {};      // of the request
  std::string caller = {};  // Caller::name
  int status = 0;           // 499: none was given, mostly because the client left; 500: nor any, for the failure below
  bool complete = true;     // false: the client left, or the answer was cut off
  bool client_left = false;
  std::chrono::duration<double> time = {};
  int64_t prompt_tokens = 0, generated_tokens = 0;
  std::string reason = {};   // of a refusal, as its caller was told, but without what the caller sent
  std::string failure = {};  // of the server itself, for its log; what tasks throw is noted by itself
  std::string ignored = {};  // parameters without an effect (ignored.h); noted before the answer, which has them as a
                             // header
};
using Note = std::function<void(Answered& so_far)>;
using OnAnswered = std::function<void(const Answered&)>;  // from any thread

class WatchedExchange final : public http::Exchange, public std::enable_shared_from_this<WatchedExchange> {
 public:
  // headers: added to every answer.
  static std::shared_ptr<WatchedExchange> watch(std::shared_ptr<http::Exchange> exchange, http::Headers headers,
                                                OnAnswered on_answered);
  ~WatchedExchange() override;

  const http::Request& request() const override { return exchange_->request(); }
  void respond(http::Response response) override;
  void start_stream(http::Response head) override;
  void write(std::string part) override { exchange_->write(std::move(part)); }
  void finish() override;
  void on_gone(std::function<void()> action) override { exchange_->on_gone(std::move(action)); }
  void post(std::function<void()> task) override;

  bool begun() const;
  bool gone() const;  // the client has left
  void note(const Note& change);
  void release();  // the function that answers it has returned: what was posted meanwhile is delivered

 private:
  WatchedExchange(std::shared_ptr<http::Exchange> exchange, http::Headers headers, OnAnswered on_answered);
  void begin(http::Response& response);
  void report(bool complete);

  const std::shared_ptr<http::Exchange> exchange_;
  const http::Headers headers_;
  const OnAnswered on_answered_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();

  mutable std::mutex mutex_;
  Answered answered_;  // so far; status 0: not begun
  bool reported_ = false, held_ = true;
  std::vector<std::function<void()>> waiting_;
};

void note(http::Exchange& exchange, const Note& change);  // of a watched one; nothing of others

}  // namespace quire::serve
