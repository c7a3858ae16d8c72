#include "serving_answer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "base/testing/expect_refused.h"

namespace quire::bench {
namespace {

using Time = AnswerReader::Time;

AnswerReader read(std::string_view bytes, size_t piece) {
  AnswerReader reader;
  int64_t tick = 0;
  for (size_t at = 0; at < bytes.size(); at += piece)
    reader.feed(bytes.substr(at, piece), Time(std::chrono::milliseconds(++tick)));
  return reader;
}

std::string chunk(const std::string& content, const char* extension = "") {
  char size[16];
  std::snprintf(size, sizeof size, "%zx", content.size());
  return size + std::string(extension) + "\r\n" + content + "\r\n";
}

const std::string kStream =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n" +
    chunk("data: {\"choices\":[{\"text\":\"one\"}]}\n") + chunk("\n") +
    chunk(": a comment\n\ndata: {\"choices\":[{\"text\": \"two\"}]}\n\ndata:{\"choices\":[{\"text\":\"\"", ";ext=1") +
    chunk("}]}\n\n") + chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\n") +
    chunk("data: [DONE]\n\n") + "0\r\nX-Trailer: 1\r\n\r\n";

TEST(ServingAnswer, AStreamIsReadInPiecesOfAnySize) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{64}, kStream.size()}) {
    const AnswerReader reader = read(kStream, piece);
    EXPECT_TRUE(reader.complete()) << piece;
    EXPECT_TRUE(reader.keeps_alive()) << piece;
    EXPECT_EQ(reader.status(), 200);
    EXPECT_EQ(reader.token_times().size(), 2) << piece;
    EXPECT_EQ(usage_of(reader.last_event()).completion_tokens, 3) << piece;
  }
}

TEST(ServingAnswer, TokensHaveTheTimesAtWhichTheyCame) {
  AnswerReader reader;
  reader.feed("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"te", Time(std::chrono::seconds(1)));
  reader.feed("xt\":\"a\"}\n", Time(std::chrono::seconds(2)));
  reader.feed("\ndata: {\"content\":\"b\"}\n", Time(std::chrono::seconds(3)));
  EXPECT_FALSE(reader.complete());
  reader.end();
  EXPECT_TRUE(reader.complete());
  EXPECT_FALSE(reader.keeps_alive());
  ASSERT_EQ(reader.token_times().size(), 2);
  EXPECT_EQ(reader.token_times()[0], Time(std::chrono::seconds(2)));
  EXPECT_EQ(reader.token_times()[1], Time(std::chrono::seconds(3)));
}

TEST(ServingAnswer, ARefusalKeepsItsBody) {
  const AnswerReader reader =
      read("HTTP/1.1 400 Bad Request\r\ncontent-LENGTH: 5\r\nConnection: close\r\n\r\nwrong", 3);
  EXPECT_TRUE(reader.complete());
  EXPECT_FALSE(reader.keeps_alive());
  EXPECT_EQ(reader.status(), 400);
  EXPECT_EQ(reader.body(), "wrong");
}

TEST(ServingAnswer, AnEmptyBodyEndsWithItsHead) {
  EXPECT_TRUE(read("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1).complete());
}

TEST(ServingAnswer, AContinueIsNotTheAnswer) {
  const AnswerReader reader = read("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", 4);
  EXPECT_TRUE(reader.complete());
  EXPECT_EQ(reader.status(), 204);
}

TEST(ServingAnswer, AConnectionThatEndsEarlyLeavesTheAnswerIncomplete) {
  AnswerReader reader = read("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", 5);
  reader.end();
  EXPECT_FALSE(reader.complete());
}

TEST(ServingAnswer, WhatIsNoAnswerIsRefused) {
  expect_refused([] { read("SSH-2.0-OpenSSH\r\n", 100); }, "begins with \"SSH-2.0-OpenSSH\"");
  expect_refused([] { read("HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", 100); }, "the length \"many\"");
}

TEST(ServingAnswer, UsageOfBothInterfaces) {
  const Usage sglang =
      usage_of(R"({"text":"x","meta_info":{"prompt_tokens":7,"cached_tokens":4,"completion_tokens":2}})");
  EXPECT_EQ(sglang.prompt_tokens, 7);
  EXPECT_EQ(sglang.cached_tokens, 4);
  EXPECT_EQ(sglang.completion_tokens, 2);
  const Usage openai = usage_of(R"({"usage":{"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}})");
  EXPECT_EQ(openai.cached_tokens, 3);
  EXPECT_EQ(openai.prompt_tokens, std::nullopt);
  EXPECT_EQ(usage_of("not JSON").completion_tokens, std::nullopt);
  EXPECT_EQ(usage_of(R"({"usage":null})").completion_tokens, std::nullopt);
  EXPECT_TRUE(usage_of(R"({"error":{"message":"no"}})").failed);
  EXPECT_FALSE(openai.failed);
}

}  // namespace
}  // namespace quire::bench
