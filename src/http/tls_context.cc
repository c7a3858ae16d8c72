#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "http/tls.h"
#include "http/tls_stream.h"

namespace quire::http {
namespace {

// The first error is the cause; those after it are of functions that gave up because of it.
std::string reason() {
  const unsigned long error = ERR_peek_error();
  if (ERR_SYSTEM_ERROR(error)) return std::strerror(ERR_GET_REASON(error));
  const char* text = ERR_reason_error_string(error);
  return text ? text : "unknown error";
}

// Without this OpenSSL would ask at the terminal.
int give_password(char* buffer, int size, int, void* password) {
  const auto& text = *static_cast<const std::string*>(password);
  const int length = std::min(size, static_cast<int>(text.size()));
  std::copy_n(text.data(), length, buffer);
  return length;
}

// Clients that offer protocols must offer ours: one that wants HTTP/2 only should learn it here.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* length, const unsigned char* offered,
                    unsigned int offered_length, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* match = nullptr;
  const int outcome = SSL_select_next_proto(&match, length, kHttp11, sizeof kHttp11 - 1, offered, offered_length);
  *chosen = match;
  return outcome == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

// Of TLS 1.2 only suites with forward secrecy and authenticated encryption; all of 1.3 are like that.
constexpr const char* kSuitesOf12 = "ECDHE+AESGCM:ECDHE+CHACHA20";

void set_behaviour(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  check(SSL_CTX_set_cipher_list(context, kSuitesOf12) == 1, "TLS cannot be set up: ", reason());
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context,
                   SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);  // tickets resume sessions and cost no memory here
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
}

void load_files(SSL_CTX* context, const std::string& certificate_file, const std::string& key_file,
                std::string password) {
  SSL_CTX_set_default_passwd_cb(context, give_password);
  SSL_CTX_set_default_passwd_cb_userdata(context, &password);
  ERR_clear_error();
  const bool certificate = SSL_CTX_use_certificate_chain_file(context, certificate_file.c_str()) == 1;
  check(certificate, "the certificate file ", certificate_file, " cannot be used: ", reason());
  const bool key = SSL_CTX_use_PrivateKey_file(context, key_file.c_str(), SSL_FILETYPE_PEM) == 1;
  check(key, "the key file ", key_file, " cannot be used with ", certificate_file, ": ", reason());
  SSL_CTX_set_default_passwd_cb_userdata(context, nullptr);
}

}  // namespace

TlsContext::TlsContext(const std::string& certificate_file, const std::string& key_file,
                       const std::string& key_password)
    : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free) {
  check(context_ != nullptr, "TLS cannot be set up: ", reason());
  set_behaviour(context_.get());
  load_files(context_.get(), certificate_file, key_file, key_password);
}

std::unique_ptr<Stream> TlsContext::stream(int socket) const { return tls_stream(context_.get(), socket); }

}  // namespace quire::http
