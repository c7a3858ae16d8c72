// What a server says on standard error while it runs, one line each: no prompts, no answers, no keys.
#pragma once
#include <cstdint>
#include <string>

#include "serve/call.h"

namespace quire {

enum class LogLevel : uint8_t { error, warn, info, debug };
LogLevel log_level_from(const std::string& name);

class ServeLog {  // from any thread
 public:
  explicit ServeLog(LogLevel level) : level_(level) {}

  void say(LogLevel level, const std::string& line) const;
  void answered(const serve::Answered& answered) const;

 private:
  const LogLevel level_;
};

// "POST /v1/chat/completions 200, 31 + 128 tokens, 812 ms"
std::string to_string(const serve::Answered& answered);

}  // namespace quire
