// Who is at the other end of a connection, for logs and for budgets.
#pragma once
#include <boost/asio/ip/tcp.hpp>
#include <string>

namespace quire::http {

std::string text_of(const boost::asio::ip::tcp::endpoint& peer);  // "127.0.0.1:52113", "[::1]:52113"

// What is taken for one peer whatever its ports: an address of version 4, also where version 6 carries it, and of
// version 6 the network of 64 bits, since whoever has one has all its addresses.
std::string network_of(const boost::asio::ip::address& address);

}  // namespace quire::http
