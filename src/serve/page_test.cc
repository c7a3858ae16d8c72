#include "serve/page.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::serve {
namespace {

TEST(Page, IsTheBuiltInOne) {
  const http::Response response = page();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "text/html; charset=utf-8");
  EXPECT_TRUE(response.body.starts_with("<!doctype html>"));
  EXPECT_TRUE(response.body.ends_with("</html>\n"));
}

TEST(Page, ItsPolicyAllowsItsOwnScriptAndStyleAlone) {
  // The hash of "alert(1)" as OpenSSL's command gives it.
  const std::string policy = content_policy("<script>alert(1)</script><script>alert(1)</script>");
  const std::string hash = "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='";
  EXPECT_NE(policy.find("script-src " + hash + " " + hash + ";"), policy.npos) << policy;
  EXPECT_NE(policy.find("style-src 'none';"), policy.npos) << policy;
  EXPECT_NE(policy.find("default-src 'none';"), policy.npos);
  expect_refused([] { content_policy("<script>alert(1)"); }, "<script>");
}

TEST(Page, HasNothingThatItsPolicyForbids) {
  const std::string html = page().body;
  for (const char* part : {"<script ", "<style ", " onclick=", " style=\"", "src=\"http", "href=\"http"})
    EXPECT_EQ(html.find(part), html.npos) << part;
}

}  // namespace
}  // namespace quire::serve
