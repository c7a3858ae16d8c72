#include "serve_log.h"

#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

using nlohmann::ordered_json;

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

std::string time_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts;
  localtime_r(&now, &parts);
  char text[40];
  std::strftime(text, sizeof(text), format, &parts);
  return text;
}

// Paths come from strangers; those that quire has need no quotes.
std::string shown_path(const std::string& path) {
  return path.find(' ') == path.npos ? in_quotes_if_odd(path, 100) : in_quotes(path, 100);
}

// "" for an answer that came to its end.
std::string abort_of(const serve::Answered& answered) {
  if (answered.complete) return "";
  return answered.client_left ? "the client left" : "the answer was cut off";
}

// Pollers ask all day long.
LogLevel level_of(const serve::Answered& answered) {
  if (!answered.failure.empty()) return LogLevel::error;
  const bool is_poll = answered.method != "POST" && answered.status < 400;
  const bool is_health = answered.path == "/health" || answered.path == "/health_generate";
  return is_poll || is_health ? LogLevel::debug : LogLevel::info;
}

// One call of the system for each line: others write, too.
void print_line(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

std::string dumped(const ordered_json& line) {
  return line.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
}

ordered_json begun_line(LogLevel level) { return {{"time", time_now("%FT%T%z")}, {"level", name_of(level)}}; }

ordered_json to_json(LogLevel level, const serve::Answered& answered) {
  ordered_json line = begun_line(level);
  const auto add_text = [&](const char* name, const std::string& text) {
    if (!text.empty()) line[name] = text;
  };
  add_text("peer", answered.peer);
  add_text("id", answered.id);
  add_text("key", answered.caller);
  add_text("method", answered.method);
  add_text("path", answered.path);
  line["status"] = answered.status;
  line["seconds"] = answered.time.count();
  if (answered.prompt_tokens + answered.generated_tokens > 0) {
    line["prompt_tokens"] = answered.prompt_tokens;
    line["generated_tokens"] = answered.generated_tokens;
  }
  add_text("ignored", answered.ignored);
  add_text("aborted", abort_of(answered));
  add_text("reason", answered.reason);
  add_text("failure", answered.failure);
  return line;
}

}  // namespace

LogLevel log_level_from(const std::string& name) {
  for (const LogLevel level : {LogLevel::error, LogLevel::info, LogLevel::debug})
    if (name == name_of(level)) return level;
  return LogLevel::warn;
}

void ServeLog::say(LogLevel level, const std::string& text) const {
  if (level > level_) return;
  if (format_ == LogFormat::text) return print_line(cat(time_now("%F %T"), " ", name_of(level), ": ", text));
  ordered_json line = begun_line(level);
  line["message"] = text;
  print_line(dumped(line));
}

void ServeLog::answered(const serve::Answered& answered) const {
  const LogLevel level = level_of(answered);
  if (level > level_) return;
  if (!answered.method.empty()) return print(level, answered);
  serve::Answered no_request = answered;
  if (!is_left_out(no_request)) print(level, no_request);
}

// Those that were, since the last line, are told in the next one's reason.
bool ServeLog::is_left_out(serve::Answered& no_request) const {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  NoRequests& such = no_requests_[no_request.status];
  if (now < such.next_line) {
    ++such.left_out;
    return true;
  }
  such.next_line = now + between_no_requests_;
  if (const int64_t count = std::exchange(such.left_out, 0))
    no_request.reason += cat(" (and ", count, " more since the last such line)");
  return false;
}

void ServeLog::print(LogLevel level, const serve::Answered& answered) const {
  if (format_ == LogFormat::text) return say(level, to_string(answered));
  print_line(dumped(to_json(level, answered)));
}

std::string to_string(const serve::Answered& answered) {
  std::string line =
      answered.method.empty() ? "no request" : cat(shown_path(answered.method), " ", shown_path(answered.path));
  line += cat(" ", answered.status);
  if (answered.prompt_tokens + answered.generated_tokens > 0)
    line += cat(", ", answered.prompt_tokens, " + ", answered.generated_tokens, " tokens");
  line += cat(", ", static_cast<int64_t>(answered.time.count() * 1000), " ms");
  if (!answered.peer.empty()) line += cat(", peer ", answered.peer);
  if (!answered.caller.empty()) line += cat(", key ", answered.caller);
  if (!answered.id.empty()) line += cat(", id ", answered.id);
  if (!answered.ignored.empty()) line += cat(", ignored ", answered.ignored);
  if (const std::string abort = abort_of(answered); !abort.empty()) line += cat(", aborted: ", abort);
  if (!answered.reason.empty()) line += cat(": ", in_quotes_if_odd(answered.reason, 300));
  if (!answered.failure.empty()) line += cat(": ", in_quotes(answered.failure, 300));
  return line;
}

}  // namespace quire
