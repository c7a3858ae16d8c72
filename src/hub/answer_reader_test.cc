#include "hub/answer_reader.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing/expect_refused.h"

namespace quire::hub {
namespace {

// The text, in pieces of at most `piece` bytes.
ByteSource source_of(std::string text, size_t piece) {
  return [text = std::move(text), piece, at = size_t{0}](std::span<char> bytes) mutable {
    const size_t count = std::min({piece, bytes.size(), text.size() - at});
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(at), count, bytes.begin());
    at += count;
    return count;
  };
}

std::string body_of(const std::string& text, size_t piece) {
  AnswerReader answer(source_of(text, piece));
  const ResponseHead head = answer.read_head();
  std::string body;
  answer.read_body(head, [&](std::string_view part) { body += part; });
  return body;
}

constexpr size_t kPieces[] = {1, 7, 1 << 20};

TEST(AnswerReader, BodiesOfEveryFraming) {
  for (const size_t piece : kPieces) {
    EXPECT_EQ(body_of("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more", piece), "hello");
    EXPECT_EQ(body_of("HTTP/1.1 200 OK\r\n\r\nhello", piece), "hello");
    EXPECT_EQ(
        body_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n", piece),
        "hello");
    EXPECT_EQ(body_of("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", piece), "");
  }
}

TEST(AnswerReader, WhatOnlySaysGoOnIsPassedOver) {
  AnswerReader answer(source_of("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 3));
  EXPECT_EQ(answer.read_head().status, 204);
}

TEST(AnswerReader, WhoOnlySaysGoOnIsNotWaitedFor) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "HTTP/1.1 100 Continue\r\n\r\n";
  AnswerReader answer(source_of(text, 1 << 20));
  expect_refused([&] { answer.read_head(); }, "does not come");
}

TEST(AnswerReader, AnAnswerThatEndsEarlyIsTheNetworks) {
  for (const size_t piece : kPieces)
    for (const char* text : {"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
                             "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
                             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhe",
                             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n"})
      EXPECT_THROW(body_of(text, piece), NetworkError) << text;
}

TEST(AnswerReader, WhatIsNotHttpIsRefused) {
  expect_refused([] { body_of("SSH-2.0-OpenSSH\r\n\r\n", 9); }, "not HTTP");
  expect_refused([] { body_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 9); }, "chunk");
  expect_refused([] { body_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n", 9); }, "chunk");
  expect_refused([] { body_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n", 9); }, "longer");
  expect_refused([] { body_of("HTTP/1.1 200 OK\r\nX: " + std::string(70000, 'x') + "\r\n\r\n", 5000); },
                 "without an end");
}

}  // namespace
}  // namespace quire::hub
