#include "http/response_text.h"

#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "base/testing/expect_refused.h"

namespace quire::http {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Letters and digits made alike.
std::string shape(std::string text) {
  for (char& c : text) {
    if (std::isupper(static_cast<unsigned char>(c))) c = 'A';
    if (std::islower(static_cast<unsigned char>(c))) c = 'a';
    if (std::isdigit(static_cast<unsigned char>(c))) c = '0';
  }
  return text;
}

TEST(ResponseText, HeadOfALength) {
  const std::string head = response_head({.body = "hello"}, Framing::length, true, false);
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n")) << head;
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  EXPECT_TRUE(has(head, "Content-Length: 5\r\n"));
  EXPECT_TRUE(has(head, "Content-Type: application/json\r\n"));
  EXPECT_FALSE(has(head, "Connection"));
  const std::string date = head.substr(head.find("Date: "), 37);
  EXPECT_EQ(shape(date), "Aaaa: Aaa, 00 Aaa 0000 00:00:00 AAA\r\n") << date;
}

TEST(ResponseText, HeadOfAStream) {
  const Response response{.content_type = "text/event-stream", .headers = {{"X-Id", "7"}}};
  const std::string chunks = response_head(response, Framing::chunks, false, false);
  EXPECT_TRUE(has(chunks, "Transfer-Encoding: chunked\r\n"));
  EXPECT_TRUE(has(chunks, "Connection: close\r\n"));
  EXPECT_TRUE(has(chunks, "X-Id: 7\r\n"));
  EXPECT_FALSE(has(chunks, "Content-Length"));
  const std::string plain = response_head(response, Framing::until_close, false, true);
  EXPECT_FALSE(has(plain, "Transfer-Encoding"));
  EXPECT_FALSE(has(plain, "Content-Length"));
}

TEST(ResponseText, OldClientsAreToldThatTheConnectionStays) {
  EXPECT_TRUE(has(response_head({}, Framing::length, true, true), "Connection: keep-alive\r\n"));
}

TEST(ResponseText, NoContentHasNoLength) {
  EXPECT_FALSE(has(response_head({.status = 204}, Framing::length, true, false), "Content-"));
}

TEST(ResponseText, RefusesWhatWouldBeginAnotherHeader) {
  const auto text = [](const Response& response) { response_head(response, Framing::length, true, false); };
  expect_refused([&] { text({.headers = {{"X-Id", "1\r\nX: y"}}}); }, "X-Id");
  expect_refused([&] { text({.headers = {{"X-Id\n", "1"}}}); }, "line break");
  expect_refused([&] { text({.content_type = "a\rb"}); }, "Content-Type");
  expect_refused([&] { text({.status = 99}); }, "99");
}

TEST(ResponseText, Chunks) {
  EXPECT_EQ(chunk("abc"), "3\r\nabc\r\n");
  EXPECT_EQ(chunk(std::string(300, 'x')), "12c\r\n" + std::string(300, 'x') + "\r\n");
}

TEST(ResponseText, Errors) {
  EXPECT_EQ(error_response(400, "no \"x\"\n").body,
            R"({"error":{"message":"no \"x\"?","type":"invalid_request_error","param":null,"code":null}})");
  EXPECT_EQ(error_response(500, "x").body,
            R"({"error":{"message":"x","type":"server_error","param":null,"code":null}})");
}

}  // namespace
}  // namespace quire::http
