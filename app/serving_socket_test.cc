#include "serving_socket.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::bench {
namespace {

TEST(ServingAddress, HostsAndPorts) {
  EXPECT_EQ(address_from("http://127.0.0.1:30000").text(), "127.0.0.1:30000");
  EXPECT_EQ(address_from("http://example.org/").text(), "example.org:80");
  EXPECT_EQ(address_from("http://[::1]:8080").host, "::1");
  EXPECT_EQ(address_from("http://[::1]:8080").port, "8080");
  EXPECT_EQ(address_from("http://[::1]").port, "80");
}

TEST(ServingAddress, WhatCannotBeMeantIsRefused) {
  for (const char* url : {"https://x", "127.0.0.1:1", "http://", "http://:5", "http://x:", "http://x/v1"})
    expect_refused([&] { (void)address_from(url); }, "the URL " + std::string(url));
}

}  // namespace
}  // namespace quire::bench
