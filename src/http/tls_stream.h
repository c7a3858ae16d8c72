// One TLS connection on a socket (stream.h says how it is used).
#pragma once
#include <openssl/ssl.h>

#include <memory>

#include "http/stream.h"

namespace quire::http {

std::unique_ptr<Stream> tls_stream(SSL_CTX* context, int socket);

}  // namespace quire::http
