#include "hub/url.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::hub {
namespace {

TEST(Url, ItsParts) {
  const Url url = parse_url("HTTPS://Hub.Example:8443/a/b?c=d#e");
  EXPECT_EQ(url.scheme, "https");
  EXPECT_EQ(url.host, "hub.example");
  EXPECT_EQ(url.port, "8443");
  EXPECT_EQ(url.target, "/a/b?c=d");
  EXPECT_EQ(url.authority(), "hub.example:8443");
  EXPECT_EQ(parse_url("http://x").target, "/");
  EXPECT_EQ(parse_url("http://x?y").target, "/?y");
  EXPECT_EQ(parse_url("http://x").port, "80");
  EXPECT_EQ(parse_url("https://x").authority(), "x");
  EXPECT_EQ(parse_url("http://[::1]:81/").host, "::1");
  EXPECT_EQ(to_string(parse_url("http://[::1]:81/a")), "http://[::1]:81/a");
}

TEST(Url, WhatIsNoneIsRefused) {
  for (const char* text : {"", "x", "ftp://x", "http://", "http://:80", "http://x:", "http://x:y", "http://user@x/",
                           "http://a b/", "http://[::1/", "http://x:123456", "http://x:65536"})
    expect_refused([&] { parse_url(text); }, "URL");
}

TEST(Url, NothingInItEndsARequestLine) {
  EXPECT_EQ(parse_url("http://x/a b\r\nEvil: 1").target, "/a%20b%0D%0AEvil:%201");
  EXPECT_EQ(redirected(parse_url("http://x/"), "/a\r\nEvil: 1").target, "/a%0D%0AEvil:%201");
  expect_refused([] { parse_url("http://x\r\nEvil/"); }, "URL");
}

TEST(Url, WhereARedirectLeads) {
  const Url from = parse_url("https://hub.example/o/n/resolve/main/f?x=1");
  const auto to = [&](const char* location) { return to_string(redirected(from, location)); };
  EXPECT_EQ(to("https://cdn.example/b?s=http://y"), "https://cdn.example/b?s=http://y");
  EXPECT_EQ(to("//cdn.example:1/b"), "https://cdn.example:1/b");
  EXPECT_EQ(to("/b?s=http://y"), "https://hub.example/b?s=http://y");
  EXPECT_EQ(to("g"), "https://hub.example/o/n/resolve/main/g");
  EXPECT_EQ(to("?y=2"), "https://hub.example/o/n/resolve/main/f?y=2");
}

TEST(Url, OriginsAreSchemeHostAndPort) {
  const Url hub = parse_url("https://hub.example/a");
  EXPECT_TRUE(hub.same_origin(parse_url("https://HUB.example:443/b")));
  EXPECT_FALSE(hub.same_origin(parse_url("http://hub.example:443/a")));
  EXPECT_FALSE(hub.same_origin(parse_url("https://hub.example:444/a")));
  EXPECT_FALSE(hub.same_origin(parse_url("https://cdn.hub.example/a")));
}

TEST(Url, Encoding) {
  EXPECT_EQ(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(encoded("a b/c?.gguf", true), "a%20b/c%3F.gguf");
  EXPECT_EQ(encoded("\xc3\xa9", true), "%C3%A9");
}

}  // namespace
}  // namespace quire::hub
