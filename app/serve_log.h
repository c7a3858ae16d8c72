// What a server says on standard error while it runs, one line each, for people or as JSON: no prompts, no answers, no
// keys, of which only the names are told.
//
// What never came to be a request (half a head, nonsense) costs its sender next to nothing, so that it has a line for
// each status now and then, which tells how many had none.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "serve/watched_exchange.h"

namespace quire {

enum class LogLevel : uint8_t { error, warn, info, debug };
LogLevel log_level_from(const std::string& name);
enum class LogFormat : uint8_t { text, json };

class ServeLog {  // from any thread
 public:
  explicit ServeLog(LogLevel level, LogFormat format = LogFormat::text,
                    std::chrono::milliseconds between_no_requests = std::chrono::seconds(10))
      : level_(level), format_(format), between_no_requests_(between_no_requests) {}

  void say(LogLevel level, const std::string& line) const;
  void answered(const serve::Answered& answered) const;

 private:
  struct NoRequests {
    std::chrono::steady_clock::time_point next_line;
    int64_t left_out = 0;
  };
  bool is_left_out(serve::Answered& no_request) const;
  void print(LogLevel level, const serve::Answered& answered) const;

  const LogLevel level_;
  const LogFormat format_;
  const std::chrono::milliseconds between_no_requests_;
  mutable std::mutex mutex_;
  mutable std::map<int, NoRequests> no_requests_;  // by status
};

// "POST /v1/chat/completions 200, 31 + 128 tokens, 812 ms, peer 127.0.0.1:52113, key alice, id req-1f0c", and at the
// end why it was refused, or what became of it.
std::string to_string(const serve::Answered& answered);

}  // namespace quire
