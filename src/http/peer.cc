#include "http/peer.h"

#include "base/check.h"

namespace quire::http {

std::string text_of(const boost::asio::ip::tcp::endpoint& peer) {
  const std::string address = peer.address().to_string();
  return peer.address().is_v6() ? cat("[", address, "]:", peer.port()) : cat(address, ":", peer.port());
}

std::string network_of(const boost::asio::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  const boost::asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, v6).to_string();
  const auto bytes = v6.to_bytes();
  return {bytes.begin(), bytes.begin() + 8};
}

}  // namespace quire::http
