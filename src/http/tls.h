// TLS 1.2 and 1.3 for the server's side: one context with the certificate, and a stream for each socket. Modern suites
// only: forward secrecy and authenticated encryption.
//
// Errors   the constructor throws CheckError, one line with the file and OpenSSL's reason.
#pragma once
#include <memory>
#include <string>

#include "http/stream.h"

struct ssl_ctx_st;

namespace quire::http {

class TlsContext {
 public:
  // PEM files: the certificate with its chain, and its key. The password is for the key; "" if it has none.
  TlsContext(const std::string& certificate_file, const std::string& key_file, const std::string& key_password);
  std::unique_ptr<Stream> stream(int socket) const;  // may outlive the context

 private:
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace quire::http
