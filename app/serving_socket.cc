#include "serving_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/check.h"

namespace quire::bench {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolved(const Address& address) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  const int failed = getaddrinfo(address.host.c_str(), address.port.c_str(), &wanted, &found);
  check(failed == 0, address.text(), ": ", gai_strerror(failed));
  return {found, freeaddrinfo};
}

}  // namespace

Address address_from(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  check(url.starts_with(kScheme), "the URL ", url, " does not begin with ", kScheme);
  std::string rest = url.substr(kScheme.size());
  if (rest.ends_with('/')) rest.pop_back();
  check(rest.find('/') == rest.npos, "the URL ", url, " has a path; give only http://HOST:PORT");
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != rest.npos && rest.find(']', colon) == rest.npos;
  Address address{rest.substr(0, has_port ? colon : rest.npos), has_port ? rest.substr(colon + 1) : "80"};
  if (address.host.starts_with('[') && address.host.ends_with(']'))  // an IPv6 address
    address.host = address.host.substr(1, address.host.size() - 2);
  check(!address.host.empty() && !address.port.empty(), "the URL ", url, " lacks a host or a port");
  return address;
}

void check_reachable(const Address& address) {
  constexpr timeval kPatience{.tv_sec = 5, .tv_usec = 0};
  const AddressList list = resolved(address);
  const int descriptor = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(descriptor >= 0, "no socket: ", std::strerror(errno));
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  const int reason = connect(descriptor, list->ai_addr, list->ai_addrlen) == 0 ? 0 : errno;
  close(descriptor);
  check(reason == 0, "no server at http://", address.text(), ": ",
        reason == EINPROGRESS ? "it does not answer" : std::strerror(reason), " (--url names another)");
}

Socket::Socket(const Address& address) {
  const AddressList list = resolved(address);
  descriptor_ = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  check(descriptor_ >= 0, "no socket: ", std::strerror(errno));
  const int on = 1;
  setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const int failed = connect(descriptor_, list->ai_addr, list->ai_addrlen);
  check(failed == 0 || errno == EINPROGRESS, "cannot connect to ", address.text(), ": ", std::strerror(errno));
}

Socket::~Socket() {
  if (is_open()) close(descriptor_);
}

bool Socket::goes_on() {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return true;
  error_ = std::strerror(errno);
  return false;
}

bool Socket::send(std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return goes_on();
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool Socket::receive(std::string& bytes) {
  char buffer[16 << 10];
  while (true) {
    const ssize_t received = recv(descriptor_, buffer, sizeof buffer, 0);
    if (received < 0) return goes_on();
    if (received == 0) return false;
    bytes.append(buffer, static_cast<size_t>(received));
  }
}

}  // namespace quire::bench
