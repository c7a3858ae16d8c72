#include "hub/connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace quire::hub {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList addresses_of(const std::string& host, const std::string& port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found);
  if (failed) throw NetworkError(cat("cannot find ", host, ": ", gai_strerror(failed)), false);
  return {found, freeaddrinfo};
}

// 0: nothing has happened for that long.
int poll_for(pollfd& socket, std::chrono::milliseconds time) {
  int ready;
  do {
    ready = poll(&socket, 1, static_cast<int>(time.count()));
  } while (ready < 0 && errno == EINTR);
  return ready;
}

bool is_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// Which name the certificate must have, and which one the server is asked for.
bool expect_host(SSL* tls, const std::string& host) {
  if (is_address(host)) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), host.c_str()) == 1;
  return SSL_set1_host(tls, host.c_str()) == 1 && SSL_set_tlsext_host_name(tls, host.c_str()) == 1;
}

std::string last_tls_error() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason ? reason : "the connection broke";
}

bool ended_without_goodbye() {
  return ERR_GET_LIB(ERR_peek_last_error()) == ERR_LIB_SSL &&
         ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
}

}  // namespace

std::shared_ptr<SSL_CTX> trusted_authorities() {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  check(context && SSL_CTX_set_default_verify_paths(context.get()) == 1 &&
            SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) == 1,
        "TLS cannot be set up: ", last_tls_error());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(), SSL_MODE_AUTO_RETRY | SSL_MODE_ENABLE_PARTIAL_WRITE);
  return context;
}

Connection::Connection(const std::string& host, const std::string& port, std::chrono::milliseconds silence)
    : host_(host), silence_(silence), tls_(nullptr, SSL_free) {
  try {
    open(port);
  } catch (...) {
    if (descriptor_ >= 0) close(descriptor_);
    throw;
  }
}

Connection::~Connection() {
  tls_.reset();
  close(descriptor_);
}

void Connection::open(const std::string& port) {
  const AddressList list = addresses_of(host_, port);
  for (const addrinfo* address = list.get(); address; address = address->ai_next)
    if (connect_to(*address)) return;
  throw NetworkError(cat("cannot connect to ", host_, ":", port, ": ", std::strerror(errno)), false);
}

// False: with the reason in errno.
bool Connection::connect_to(const addrinfo& address) {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) return false;
  const int on = 1;
  setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(descriptor_, address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd socket{.fd = descriptor_, .events = POLLOUT, .revents = 0};
  if (poll_for(socket, silence_) == 0) errno = ETIMEDOUT;
  if (!(socket.revents & (POLLOUT | POLLERR | POLLHUP))) return false;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error == 0;
}

void Connection::wait_for(short events) {
  pollfd socket{.fd = descriptor_, .events = events, .revents = 0};
  if (poll_for(socket, silence_) == 0)
    throw NetworkError(cat(host_, " has been silent for ", silence_.count(), " ms"), true);
}

// After a call of OpenSSL that did not succeed: waits until it may be tried again, or throws.
void Connection::wait_for_tls(int result, const char* doing) {
  const int error = SSL_get_error(tls_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return wait_for(POLLIN);
  if (error == SSL_ERROR_WANT_WRITE) return wait_for(POLLOUT);
  throw NetworkError(cat(doing, " ", host_, ": ", last_tls_error()), true);
}

void Connection::start_tls(const std::string& host, const std::shared_ptr<SSL_CTX>& authorities) {
  authorities_ = authorities;
  tls_.reset(SSL_new(authorities.get()));
  check(tls_ && SSL_set_fd(tls_.get(), descriptor_) == 1 && expect_host(tls_.get(), host), "TLS cannot be set up for ",
        host);
  ERR_clear_error();
  for (int result; (result = SSL_connect(tls_.get())) != 1;) {
    const long verified = SSL_get_verify_result(tls_.get());
    check(verified == X509_V_OK, "the certificate of ", host,
          " is not trusted: ", X509_verify_cert_error_string(verified));
    wait_for_tls(result, "no TLS with");
  }
}

size_t Connection::write_some(std::string_view bytes) {
  if (tls_) {
    ERR_clear_error();
    const int written = SSL_write(tls_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20)));
    if (written > 0) return static_cast<size_t>(written);
    wait_for_tls(written, "cannot write to");
    return 0;
  }
  const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (errno != EAGAIN && errno != EINTR)
    throw NetworkError(cat("cannot write to ", host_, ": ", std::strerror(errno)), true);
  wait_for(POLLOUT);
  return 0;
}

void Connection::write(std::string_view bytes) {
  while (!bytes.empty()) bytes.remove_prefix(write_some(bytes));
}

// None: nothing has come yet.
std::optional<size_t> Connection::read_tls(std::span<char> bytes) {
  ERR_clear_error();
  const int received = SSL_read(tls_.get(), bytes.data(), static_cast<int>(bytes.size()));
  if (received > 0) return static_cast<size_t>(received);
  if (SSL_get_error(tls_.get(), received) == SSL_ERROR_ZERO_RETURN || ended_without_goodbye()) return 0;
  wait_for_tls(received, "cannot read from");
  return std::nullopt;
}

std::optional<size_t> Connection::read_plain(std::span<char> bytes) {
  const ssize_t received = recv(descriptor_, bytes.data(), bytes.size(), 0);
  if (received >= 0) return static_cast<size_t>(received);
  if (errno != EAGAIN && errno != EINTR)
    throw NetworkError(cat("the connection to ", host_, " broke: ", std::strerror(errno)), true);
  wait_for(POLLIN);
  return std::nullopt;
}

size_t Connection::read(std::span<char> bytes) {
  while (true)
    if (const auto received = tls_ ? read_tls(bytes) : read_plain(bytes)) return *received;
}

}  // namespace quire::hub
