#include "http/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/check.h"

namespace quire::http {
namespace {

using Outcome = Moved::Outcome;

// OpenSSL's own way to a socket raises SIGPIPE when the client has gone; this one does not.
int socket_of(BIO* bio) { return *static_cast<const int*>(BIO_get_data(bio)); }
bool is_blocked(ssize_t count) { return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR); }

int bio_write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = ::send(socket_of(bio), bytes, size, MSG_NOSIGNAL);
  if (is_blocked(count)) BIO_set_retry_write(bio);
  return static_cast<int>(count);
}

int bio_read(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = ::recv(socket_of(bio), bytes, size, 0);
  if (is_blocked(count)) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

int bio_create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

const BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
    check(made != nullptr, "TLS cannot be set up: out of memory");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    BIO_meth_set_create(made, bio_create);
    return made;
  }();
  return method;
}

class TlsStream final : public Stream {
 public:
  TlsStream(SSL_CTX* context, int socket) : socket_(socket), ssl_(SSL_new(context)) {
    BIO* bio = ssl_ ? BIO_new(socket_method()) : nullptr;
    check(bio != nullptr, "a TLS connection cannot be set up: out of memory");
    BIO_set_data(bio, &socket_);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_accept_state(ssl_.get());
  }

  Moved handshake() override {
    ERR_clear_error();
    return moved(SSL_do_handshake(ssl_.get()), 0);
  }
  Moved read(std::span<char> into) override {
    size_t count = 0;
    ERR_clear_error();
    const int outcome = SSL_read_ex(ssl_.get(), into.data(), into.size(), &count);
    return moved(outcome, count);
  }
  Moved write(std::string_view bytes) override {
    size_t count = 0;
    ERR_clear_error();
    const int outcome = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count);
    return moved(outcome, count);
  }
  void end_writing() override {
    ERR_clear_error();
    if (!broken_) SSL_shutdown(ssl_.get());
    ::shutdown(socket_, SHUT_WR);
  }

 private:
  Moved moved(int outcome, size_t count) {
    if (outcome == 1) return {Outcome::done, count};
    const int error = SSL_get_error(ssl_.get(), outcome);
    if (error == SSL_ERROR_WANT_READ) return {Outcome::wants_read};
    if (error == SSL_ERROR_WANT_WRITE) return {Outcome::wants_write};
    broken_ = error != SSL_ERROR_ZERO_RETURN;  // after which OpenSSL must not be asked for a good-bye
    const bool speaks_http = error == SSL_ERROR_SSL && ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST;
    return {speaks_http ? Outcome::plain_http : Outcome::closed};
  }

  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  int socket_;
  std::unique_ptr<SSL, Free> ssl_;
  bool broken_ = false;
};

}  // namespace

std::unique_ptr<Stream> tls_stream(SSL_CTX* context, int socket) {
  return std::make_unique<TlsStream>(context, socket);
}

}  // namespace quire::http
