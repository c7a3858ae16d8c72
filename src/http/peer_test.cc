#include "http/peer.h"

#include <gtest/gtest.h>

namespace quire::http {
namespace {

std::string network(const char* address) { return network_of(boost::asio::ip::make_address(address)); }

TEST(Peer, IsShownWithItsPort) {
  EXPECT_EQ(text_of({boost::asio::ip::make_address("127.0.0.1"), 80}), "127.0.0.1:80");
  EXPECT_EQ(text_of({boost::asio::ip::make_address("::1"), 80}), "[::1]:80");
}

TEST(Peer, IsAnAddressOfVersion4OrANetworkOfVersion6) {
  EXPECT_NE(network("10.0.0.1"), network("10.0.0.2"));
  EXPECT_EQ(network("::ffff:10.0.0.1"), network("10.0.0.1"));
  EXPECT_EQ(network("2001:db8::1"), network("2001:db8::ffff:1"));
  EXPECT_NE(network("2001:db8::1"), network("2001:db8:0:1::1"));
}

}  // namespace
}  // namespace quire::http
