#include "hub/proxy.h"

#include <gtest/gtest.h>

#include <map>

#include "base/testing/expect_refused.h"

namespace quire::hub {
namespace {

using Variables = std::map<std::string, std::string>;

std::string proxy_of(const char* url, const Variables& variables) {
  const auto proxy = proxy_for(parse_url(url), [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
  return proxy ? proxy->url.authority() + (proxy->credentials.empty() ? "" : " " + proxy->credentials) : "";
}

TEST(Proxy, EachSchemeHasItsOwn) {
  const Variables both = {{"http_proxy", "http://plain:1"}, {"https_proxy", "secure:2"}};
  EXPECT_EQ(proxy_of("http://x", both), "plain:1");
  EXPECT_EQ(proxy_of("https://x", both), "secure:2");
  EXPECT_EQ(proxy_of("https://x", {}), "");
  EXPECT_EQ(proxy_of("https://x", {{"HTTPS_PROXY", "http://p"}}), "p");
  EXPECT_EQ(proxy_of("http://x", {{"HTTP_PROXY", "http://p"}}), "");
  EXPECT_EQ(proxy_of("http://x", {{"ALL_PROXY", "http://p"}}), "p");
}

TEST(Proxy, Exceptions) {
  const auto with = [](const char* url, const char* list) {
    return proxy_of(url, {{"https_proxy", "http://p"}, {"no_proxy", list}});
  };
  EXPECT_EQ(with("https://hub.example", "*"), "");
  EXPECT_EQ(with("https://hub.example", "a, Hub.example"), "");
  EXPECT_EQ(with("https://cdn.hub.example", ".hub.example"), "");
  EXPECT_EQ(with("https://cdn.hub.example", "hub.example"), "");
  EXPECT_EQ(with("https://hub.example:8443", "hub.example:8443"), "");
  EXPECT_EQ(with("https://hub.example", "hub.example:8443"), "p");
  EXPECT_EQ(with("https://myhub.example", "hub.example"), "p");
  EXPECT_EQ(with("https://hub.example", ", ,"), "p");
}

TEST(Proxy, CredentialsAreDecoded) {
  EXPECT_EQ(proxy_of("https://x", {{"https_proxy", "http://me:a%40b@p:3128/"}}), "p:3128 me:a@b");
}

TEST(Proxy, OtherKindsAreRefused) {
  expect_refused([] { proxy_of("https://x", {{"https_proxy", "socks5://p"}}); }, "is no http:// proxy");
}

}  // namespace
}  // namespace quire::hub
