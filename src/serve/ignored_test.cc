#include "serve/ignored.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

TEST(Ignored, NamesEachOnceInTheirOrder) {
  Ignored ignored;
  EXPECT_EQ(ignored.header(), "");
  for (const char* path : {"store", "messages[0].cache_control", "messages[17].cache_control", "store",
                           "messages[2].content[10].cache_control", "a2", "b[", "c[5]"})
    ignored.add(path);
  EXPECT_EQ(ignored.header(), "store, messages[].cache_control, messages[].content[].cache_control, a2, b[, c[]");
}

TEST(Ignored, WhatAHeaderCannotCarryIsNotInIt) {
  Ignored ignored;
  ignored.add("x\r\nset-cookie: a=b, c\xC3\xB6");
  EXPECT_EQ(ignored.header(), "x??set-cookie??a?b??c??");
}

TEST(Ignored, IsOfLimitedLength) {
  Ignored ignored;
  ignored.add(std::string(10'000, 'a'));
  EXPECT_EQ(ignored.header().size(), 120u);
  for (int i = 0; i < 1000; ++i) ignored.add("name" + std::to_string(i));
  EXPECT_LE(ignored.header().size(), Ignored::kMostBytes);
  EXPECT_TRUE(ignored.header().ends_with(", ...")) << ignored.header();
}

}  // namespace
}  // namespace quire::serve
