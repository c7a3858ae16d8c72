#include "serve/caller.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

std::string key_in(http::Headers headers) {
  http::Request request;
  request.headers = std::move(headers);
  return std::string(presented_key(request));
}

TEST(Access, ComparesWholeTexts) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_TRUE(equal_in_constant_time("", ""));
  for (const char* other : {"", "a", "ab", "abd", "abcd", "abcabc", "xbc"}) {
    EXPECT_FALSE(equal_in_constant_time("abc", other)) << other;
    EXPECT_FALSE(equal_in_constant_time(other, "abc")) << other;
  }
}

TEST(Access, FindsTheKeyInEitherHeader) {
  EXPECT_EQ(key_in({{"authorization", "Bearer k1"}}), "k1");
  EXPECT_EQ(key_in({{"authorization", "bearer   k1"}}), "k1");
  EXPECT_EQ(key_in({{"x-api-key", "k2"}}), "k2");
  EXPECT_EQ(key_in({{"authorization", "Bearer k1"}, {"x-api-key", "k2"}}), "k1");
  EXPECT_EQ(key_in({{"authorization", "Basic k1"}}), "");
  EXPECT_EQ(key_in({{"authorization", "Bearer "}}), "");
  EXPECT_EQ(key_in({{"authorization", "Bearerk1"}}), "");
  EXPECT_EQ(key_in({}), "");
}

TEST(Access, FindsTheCallerOfAKey) {
  const std::vector<ApiKey> keys = {{"one", "", "first"}, {"two", "salt"}};
  EXPECT_EQ(caller_with("one", keys, "")->salt, "");
  EXPECT_EQ(caller_with("two", keys, "")->salt, "salt");
  EXPECT_EQ(caller_with("one", keys, "")->name, "first");
  EXPECT_EQ(caller_with("admin", keys, "admin")->name, "admin");
  EXPECT_NE(caller_with("one", keys, "")->key, caller_with("two", keys, "")->key);
  for (const char* wrong : {"", "on", "onee", "three"}) {
    EXPECT_FALSE(caller_with(wrong, keys, "")) << wrong;
    EXPECT_FALSE(caller_with(wrong, keys, "admin")) << wrong;
  }
}

TEST(Access, WhoIsAloneOrHasTheAdminKeyMayManage) {
  const std::vector<ApiKey> one = {{"one"}}, two = {{"one"}, {"two"}};
  EXPECT_TRUE(caller_with("", {}, "")->may_manage);
  EXPECT_TRUE(caller_with("one", one, "")->may_manage);
  EXPECT_FALSE(caller_with("one", two, "")->may_manage);
  EXPECT_FALSE(caller_with("one", one, "admin")->may_manage);
  EXPECT_FALSE(caller_with("", {}, "admin")->may_manage) << "everybody may call, and not manage";
  for (const auto& keys : {std::vector<ApiKey>(), one, two})
    EXPECT_TRUE(caller_with("admin", keys, "admin")->may_manage) << keys.size();
}

TEST(JoinedSalt, IsEmptyWithoutSalts) { EXPECT_EQ(joined_salt({}, ""), ""); }

TEST(JoinedSalt, KeepsCallersApartWhateverTheyAskFor) {
  EXPECT_NE(joined_salt({"a"}, ""), joined_salt({"b"}, ""));
  EXPECT_NE(joined_salt({"a"}, "bc"), joined_salt({"ab"}, "c"));
  EXPECT_NE(joined_salt({""}, "1:a"), joined_salt({"a"}, ""));
  EXPECT_NE(joined_salt({""}, "a"), joined_salt({"a"}, ""));
  EXPECT_EQ(joined_salt({"a"}, "b"), joined_salt({"a"}, "b"));
}

}  // namespace
}  // namespace quire::serve
