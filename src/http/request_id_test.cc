#include "http/request_id.h"

#include <gtest/gtest.h>

namespace quire::http {
namespace {

TEST(RequestId, IsTheClientsWhereThatCanBeOne) {
  for (const char* id : {"a", "3f0c-11", "~!\"{}"}) EXPECT_EQ(request_id(id), id);
  EXPECT_EQ(request_id(std::string(128, 'x')), std::string(128, 'x'));
}

TEST(RequestId, IsANewOneOtherwise) {
  for (const std::string& id : {std::string(), std::string(129, 'x'), std::string("a b"), std::string("\xc3\xa4")}) {
    const std::string made = request_id(id);
    EXPECT_TRUE(made.starts_with("req-")) << made;
    EXPECT_NE(made, request_id(id));
  }
}

}  // namespace
}  // namespace quire::http
