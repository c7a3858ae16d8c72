#include "base/base64.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Base64, IsThatOfTheStandard) {  // RFC 4648, section 10
  EXPECT_EQ(in_base64(""), "");
  EXPECT_EQ(in_base64("f"), "Zg==");
  EXPECT_EQ(in_base64("fo"), "Zm8=");
  EXPECT_EQ(in_base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(in_base64(std::string("\0\xff", 2)), "AP8=");
}

}  // namespace
}  // namespace quire
