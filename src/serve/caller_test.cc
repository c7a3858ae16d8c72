#include "serve/caller.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

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
