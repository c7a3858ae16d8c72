#include "serve_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace quire {
namespace {

serve::Answered answered(const char* method, const char* path, int status) {
  return {.method = method, .path = path, .peer = {}, .status = status, .time = std::chrono::milliseconds(12)};
}

std::string logged(LogLevel level, const serve::Answered& one) {
  ::testing::internal::CaptureStderr();
  ServeLog(level).answered(one);
  return ::testing::internal::GetCapturedStderr();
}

TEST(ServeLog, OneLineAnAnswer) {
  serve::Answered generated = answered("POST", "/generate", 200);
  EXPECT_EQ(to_string(generated), "POST /generate 200, 12 ms");
  generated.prompt_tokens = 3;
  generated.generated_tokens = 4;
  generated.peer = "127.0.0.1:5";
  generated.caller = "alice";
  generated.id = "req-1";
  EXPECT_EQ(to_string(generated), "POST /generate 200, 3 + 4 tokens, 12 ms, peer 127.0.0.1:5, key alice, id req-1");
}

TEST(ServeLog, WhatBecameOfACallIsAtTheEnd) {
  serve::Answered left = answered("POST", "/generate", 200), refused = answered("POST", "/generate", 400);
  left.complete = false;
  EXPECT_EQ(to_string(left), "POST /generate 200, 12 ms, aborted: the answer was cut off");
  left.client_left = true;
  EXPECT_EQ(to_string(left), "POST /generate 200, 12 ms, aborted: the client left");
  refused.reason = "n: expected a whole number";
  EXPECT_EQ(to_string(refused), "POST /generate 400, 12 ms: n: expected a whole number");
  EXPECT_EQ(to_string(answered("", "", 408)), "no request 408, 12 ms");
}

TEST(ServeLog, LinesCanBeJson) {
  serve::Answered one = answered("POST", "/a\n", 400);
  one.peer = "127.0.0.1:5";
  one.id = "req-1";
  one.caller = "alice";
  one.reason = "because";
  one.ignored = "store";
  one.complete = false;
  one.client_left = true;
  ::testing::internal::CaptureStderr();
  const ServeLog log(LogLevel::info, LogFormat::json);
  log.answered(one);
  log.say(LogLevel::warn, "a \"word\"");
  log.say(LogLevel::debug, "quiet");
  std::istringstream lines(::testing::internal::GetCapturedStderr());
  std::string first, second, none;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_FALSE(std::getline(lines, none));
  nlohmann::json answer = nlohmann::json::parse(first);
  EXPECT_EQ(answer["time"].get<std::string>().size(), std::string("2026-01-31T12:00:00+0000").size());
  answer.erase("time");
  EXPECT_EQ(answer, nlohmann::json::parse(R"({"level": "info", "peer": "127.0.0.1:5", "id": "req-1", "key": "alice",
      "method": "POST", "path": "/a\n", "status": 400, "seconds": 0.012, "ignored": "store",
      "aborted": "the client left", "reason": "because"})"));
  EXPECT_EQ(nlohmann::json::parse(second)["message"], "a \"word\"");
}

TEST(ServeLog, NamesWhatWasIgnored) {
  serve::Answered one = answered("POST", "/generate", 200);
  one.ignored = "store, messages[].id";
  EXPECT_EQ(to_string(one), "POST /generate 200, 12 ms, ignored store, messages[].id");
}

TEST(ServeLog, WhatStrangersSendCannotBreakALine) {
  EXPECT_EQ(to_string(answered("GET", "/a\nb", 404)), "GET \"/a\\nb\" 404, 12 ms");
  EXPECT_EQ(to_string(answered("GET", "/a b", 404)), "GET \"/a b\" 404, 12 ms");
}

TEST(ServeLog, PollersAreQuiet) {
  EXPECT_EQ(logged(LogLevel::info, answered("GET", "/health", 200)), "");
  EXPECT_EQ(logged(LogLevel::info, answered("GET", "/health", 503)), "");
  EXPECT_EQ(logged(LogLevel::info, answered("GET", "/metrics", 200)), "");
  EXPECT_NE(logged(LogLevel::debug, answered("GET", "/metrics", 200)), "");
  EXPECT_NE(logged(LogLevel::info, answered("GET", "/metrics", 401)), "");
  EXPECT_NE(logged(LogLevel::info, answered("POST", "/generate", 200)), "");
  EXPECT_EQ(logged(LogLevel::warn, answered("POST", "/generate", 200)), "");
}

TEST(ServeLog, TheServersOwnFailuresAreErrors) {
  serve::Answered failed = answered("POST", "/generate", 500);
  failed.failure = "why";
  const std::string line = logged(LogLevel::error, failed);
  EXPECT_NE(line.find("error: POST /generate 500, 12 ms: \"why\"\n"), std::string::npos) << line;
}

// Whoever opens connections and sends half a head must not fill the disk.
TEST(ServeLog, WhatIsNoRequestHasALineNowAndThen) {
  serve::Answered half = answered("", "", 408), nonsense = answered("", "", 400);
  half.reason = "late";
  ::testing::internal::CaptureStderr();
  const ServeLog log(LogLevel::info, LogFormat::text, std::chrono::milliseconds(200));
  for (int i = 0; i < 1000; ++i) log.answered(half);
  log.answered(nonsense);
  log.answered(answered("POST", "/generate", 408));
  log.answered(answered("POST", "/generate", 408));
  std::this_thread::sleep_for(std::chrono::milliseconds(220));
  log.answered(half);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 5) << lines;
  EXPECT_NE(lines.find("no request 408, 12 ms: late\n"), lines.npos) << lines;
  EXPECT_NE(lines.find("no request 408, 12 ms: late (and 999 more since the last such line)\n"), lines.npos) << lines;
}

TEST(ServeLog, LevelsHaveNames) {
  EXPECT_EQ(log_level_from("error"), LogLevel::error);
  EXPECT_EQ(log_level_from("warn"), LogLevel::warn);
  EXPECT_EQ(log_level_from("info"), LogLevel::info);
  EXPECT_EQ(log_level_from("debug"), LogLevel::debug);
}

}  // namespace
}  // namespace quire
