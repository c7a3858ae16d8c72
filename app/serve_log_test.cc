#include "serve_log.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

serve::Answered answered(const char* method, const char* path, int status) {
  return {.method = method,
          .path = path,
          .peer = {},
          .status = status,
          .complete = true,
          .time = std::chrono::milliseconds(12),
          .prompt_tokens = 0,
          .generated_tokens = 0,
          .failure = {}};
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
  generated.complete = false;
  EXPECT_EQ(to_string(generated), "POST /generate 200, 3 + 4 tokens, 12 ms, the client left");
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

TEST(ServeLog, LevelsHaveNames) {
  EXPECT_EQ(log_level_from("error"), LogLevel::error);
  EXPECT_EQ(log_level_from("warn"), LogLevel::warn);
  EXPECT_EQ(log_level_from("info"), LogLevel::info);
  EXPECT_EQ(log_level_from("debug"), LogLevel::debug);
}

}  // namespace
}  // namespace quire
