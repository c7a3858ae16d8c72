#include "serve_log.h"

#include <cstdio>
#include <ctime>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error";
    case LogLevel::warn:
      return "warning";
    case LogLevel::info:
      return "info";
    default:
      return "debug";
  }
}

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts;
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%F %T", &parts);
  return text;
}

// Paths come from strangers; those that quire has need no quotes.
std::string shown_path(const std::string& path) {
  const std::string quoted = in_quotes(path, 100);
  return quoted == cat("\"", path, "\"") && path.find(' ') == path.npos ? path : quoted;
}

// Pollers ask all day long.
LogLevel level_of(const serve::Answered& answered) {
  if (!answered.failure.empty()) return LogLevel::error;
  const bool is_poll = answered.method != "POST" && answered.status < 400;
  const bool is_health = answered.path == "/health" || answered.path == "/health_generate";
  return is_poll || is_health ? LogLevel::debug : LogLevel::info;
}

}  // namespace

LogLevel log_level_from(const std::string& name) {
  for (const LogLevel level : {LogLevel::error, LogLevel::info, LogLevel::debug})
    if (name == name_of(level)) return level;
  return LogLevel::warn;
}

void ServeLog::say(LogLevel level, const std::string& line) const {
  if (level <= level_) std::fprintf(stderr, "%s %s: %s\n", time_now().c_str(), name_of(level), line.c_str());
}

void ServeLog::answered(const serve::Answered& answered) const {
  const LogLevel level = level_of(answered);
  if (level <= level_) say(level, to_string(answered));
}

std::string to_string(const serve::Answered& answered) {
  std::string line = cat(shown_path(answered.method), " ", shown_path(answered.path), " ", answered.status);
  if (answered.prompt_tokens + answered.generated_tokens > 0)
    line += cat(", ", answered.prompt_tokens, " + ", answered.generated_tokens, " tokens");
  line += cat(", ", static_cast<int64_t>(answered.time.count() * 1000), " ms");
  if (!answered.ignored.empty()) line += cat(", ignored ", answered.ignored);
  if (!answered.complete) line += ", the client left";
  if (!answered.failure.empty()) line += cat(": ", in_quotes(answered.failure, 300));
  return line;
}

}  // namespace quire
