#include "http/testing_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace quire::http {
namespace {

constexpr int kPatience = 10;  // seconds

sockaddr_in v4_address(in_addr_t address, uint16_t port) {
  return {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {address}, .sin_zero = {}};
}

// from: an address of version 4 to come from, or null.
int connected_socket(int family, uint16_t port, int receive_buffer, const char* from = nullptr) {
  const int socket = ::socket(family, SOCK_STREAM, 0);
  check(socket >= 0, "no socket: ", std::strerror(errno));
  const timeval patience{kPatience, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (receive_buffer > 0) ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  const sockaddr_in own = v4_address(from ? inet_addr(from) : INADDR_ANY, 0);
  if (from) check(::bind(socket, reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0, "no address ", from);
  const sockaddr_in v4 = v4_address(htonl(INADDR_LOOPBACK), port);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  v6.sin6_addr = in6addr_loopback;
  const bool is_v6 = family == AF_INET6;
  const auto* address = is_v6 ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
  if (::connect(socket, address, is_v6 ? sizeof v6 : sizeof v4) == 0) return socket;
  const int error = errno;
  ::close(socket);
  throw CheckError(cat("no connection: ", std::strerror(error)));
}

std::shared_ptr<SSL> tls_on(int socket) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  std::shared_ptr<SSL> tls(SSL_new(context.get()), SSL_free);
  SSL_set_fd(tls.get(), socket);
  return tls;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

ClientAnswer parse_head(const std::string& head) {
  check(head.starts_with("HTTP/1.1 ") && head.size() > 12, "no status line: ", head);
  ClientAnswer answer{.status = std::stoi(head.substr(9, 3))};
  size_t start = head.find("\r\n") + 2;
  for (size_t end = head.find("\r\n", start); end > start; end = head.find("\r\n", start)) {
    const size_t colon = head.find(": ", start);
    check(colon < end, "no header: ", head.substr(start, end - start));
    answer.headers[lower_case(head.substr(start, colon - start))] = head.substr(colon + 2, end - colon - 2);
    start = end + 2;
  }
  return answer;
}

}  // namespace

std::string ClientAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

TestingClient::TestingClient(uint16_t port, Speaks speaks, int receive_buffer)
    : TestingClient(speaks, connected_socket(AF_INET, port, receive_buffer)) {}

TestingClient::TestingClient(Speaks speaks, int socket) : socket_(socket) {
  if (speaks == Speaks::tls) tls_ = tls_on(socket_);
}

TestingClient TestingClient::on_ipv6(uint16_t port) { return {Speaks::plain, connected_socket(AF_INET6, port, 0)}; }

TestingClient TestingClient::from(const char* address, uint16_t port) {
  return {Speaks::plain, connected_socket(AF_INET, port, 0, address)};
}

TestingClient::TestingClient(TestingClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), tls_(std::move(other.tls_)), received_(std::move(other.received_)) {}

TestingClient::~TestingClient() { close(); }

void TestingClient::offer_only(const char* suites) {
  SSL_set_max_proto_version(tls_.get(), TLS1_2_VERSION);
  check(SSL_set_cipher_list(tls_.get(), suites) == 1, "no suites: ", suites);
}

std::string TestingClient::certificate() const {
  const std::unique_ptr<X509, void (*)(X509*)> certificate(SSL_get1_peer_certificate(tls_.get()), X509_free);
  unsigned char* bytes = nullptr;
  const int size = i2d_X509(certificate.get(), &bytes);
  check(size > 0, "the server showed no certificate");
  const std::string copy(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  OPENSSL_free(bytes);
  return copy;
}

bool TestingClient::shakes_hands() {
  ERR_clear_error();
  return SSL_connect(tls_.get()) == 1;
}

void TestingClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = tls_ ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                               : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    check(count > 0, "the server does not take what is sent: ", std::strerror(errno));
    bytes.remove_prefix(count);
  }
}

// 0: the end, also by a reset.
size_t TestingClient::receive(char* into, size_t size) {
  const ssize_t count = tls_ ? SSL_read(tls_.get(), into, static_cast<int>(size)) : ::recv(socket_, into, size, 0);
  check(count >= 0 || tls_ || errno == ECONNRESET, "nothing came for ", kPatience, " seconds: ", std::strerror(errno));
  return count > 0 ? count : 0;
}

bool TestingClient::read_more() {
  char bytes[16 << 10];
  const size_t count = receive(bytes, sizeof bytes);
  received_.append(bytes, count);
  return count > 0;
}

std::string TestingClient::read_until(std::string_view end) {
  size_t found = received_.find(end);
  while (found == received_.npos) {
    check(read_more(), "the connection ended before '", end, "', after '", received_, "'");
    found = received_.find(end);
  }
  std::string text = received_.substr(0, found + end.size());
  received_.erase(0, text.size());
  return text;
}

std::string TestingClient::read_count(size_t count) {
  while (received_.size() < count)
    check(read_more(), "the connection ended ", count - received_.size(), " bytes early");
  std::string text = received_.substr(0, count);
  received_.erase(0, count);
  return text;
}

std::string TestingClient::read_some() {
  std::string bytes = std::exchange(received_, std::string(64 << 10, '\0'));
  received_.resize(receive(received_.data(), received_.size()));
  return bytes + std::exchange(received_, {});
}

std::string TestingClient::read_to_end() {
  while (read_more()) continue;
  return std::exchange(received_, {});
}

std::string TestingClient::read_chunks() {
  std::string body;
  while (true) {
    const size_t size = std::stoul(read_until("\r\n"), nullptr, 16);
    body += read_count(size);
    check(read_count(2) == "\r\n", "a chunk without its end");
    if (size == 0) return body;
  }
}

ClientAnswer TestingClient::read_answer(bool of_head) {
  ClientAnswer answer = parse_head(read_until("\r\n\r\n"));
  if (of_head || answer.status < 200 || answer.status == 204 || answer.status == 304) return answer;
  if (answer.header("transfer-encoding") == "chunked") {
    answer.body = read_chunks();
  } else if (answer.headers.contains("content-length")) {
    answer.body = read_count(std::stoul(answer.header("content-length")));
  } else {
    answer.body = read_to_end();
  }
  return answer;
}

ClientAnswer TestingClient::get(std::string_view path) {
  send(cat("GET ", path, " HTTP/1.1\r\nHost: test\r\n\r\n"));
  return read_answer();
}

bool TestingClient::is_closed() {
  char byte;
  return received_.empty() && receive(&byte, 1) == 0;
}

void TestingClient::forget_tls() { tls_.reset(); }

void TestingClient::close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void TestingClient::reset() {
  const linger at_once{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

}  // namespace quire::http
