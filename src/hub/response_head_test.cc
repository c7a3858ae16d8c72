#include "hub/response_head.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::hub {
namespace {

TEST(ResponseHead, StatusAndHeaders) {
  const ResponseHead head = parse_response_head(
      "HTTP/1.1 302 Found\r\nLocation: /x\r\nX-Linked-Etag:  \"abc\" \r\nContent-Length: 12\r\n\r\n");
  EXPECT_EQ(head.status, 302);
  EXPECT_TRUE(head.is_redirect());
  EXPECT_EQ(head.header("location"), "/x");
  EXPECT_EQ(head.header("x-linked-ETAG"), "\"abc\"");
  EXPECT_EQ(head.header("etag"), std::nullopt);
  EXPECT_EQ(head.content_length(), 12);
  EXPECT_FALSE(head.is_chunked());
  EXPECT_FALSE(parse_response_head("HTTP/1.0 302\r\n\r\n").is_redirect()) << "it leads nowhere";
  EXPECT_TRUE(parse_response_head("HTTP/1.1 200 OK\nTransfer-Encoding: Chunked\n\n").is_chunked());
}

TEST(ResponseHead, WhatIsNoHeadIsRefused) {
  for (const char* text :
       {"", "\r\n", "hello\r\n\r\n", "HTTP/2 200\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 099 x\r\n\r\n",
        "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "HTTP/1.1 200 OK\r\n: x\r\n\r\n"})
    expect_refused([&] { parse_response_head(text); }, "the answer");
  const auto with = [](const char* header) {
    return parse_response_head(std::string("HTTP/1.1 200 OK\r\n") + header + "\r\n\r\n");
  };
  expect_refused([&] { with("Content-Length: -1").content_length(); }, "length");
  expect_refused([&] { with("Content-Length: 1, 1").content_length(); }, "length");
  expect_refused([&] { with("Content-Length: 99999999999999999999").content_length(); }, "length");
  expect_refused([&] { with("Transfer-Encoding: gzip").is_chunked(); }, "encoded");
}

TEST(ResponseHead, Ranges) {
  EXPECT_EQ(parse_content_range("bytes 10-99/100"), (std::pair<int64_t, int64_t>{10, 100}));
  for (const char* text :
       {"", "bytes */100", "bytes 10-99/*", "10-99/100", "bytes 99-10/100", "bytes 10-100/100", "bytes -1-2/3"})
    EXPECT_EQ(parse_content_range(text), std::nullopt) << text;
}

TEST(ResponseHead, Etags) {
  EXPECT_EQ(plain_etag("\"abc\""), "abc");
  EXPECT_EQ(plain_etag("W/\"abc\""), "abc");
  EXPECT_EQ(plain_etag("abc"), "abc");
  EXPECT_EQ(plain_etag("\""), "\"");
}

}  // namespace
}  // namespace quire::hub
