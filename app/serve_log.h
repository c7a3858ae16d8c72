// What a server says on standard error while it runs, one line each, for people or as JSON: no prompts, no answers, no
// keys, of which only the names are told.
#pragma once
#include <cstdint>
#include <string>

#include "serve/watched_exchange.h"

namespace quire {

enum class LogLevel : uint8_t { error, warn, info, debug };
LogLevel log_level_from(const std::string& name);
enum class LogFormat : uint8_t { text, json };

class ServeLog {  // from any thread
 public:
  explicit ServeLog(LogLevel level, LogFormat format = LogFormat::text) : level_(level), format_(format) {}

  void say(LogLevel level, const std::string& line) const;
  void answered(const serve::Answered& answered) const;

 private:
  const LogLevel level_;
  const LogFormat format_;
};

// "POST /v1/chat/completions 200, 31 + 128 tokens, 812 ms, peer 127.0.0.1:52113, key alice, id req-1f0c", and at the
// end why it was refused, or what became of it.
std::string to_string(const serve::Answered& answered);

}  // namespace quire
