#include "hub/digest.h"

#include <openssl/evp.h>

#include <algorithm>

#include "base/check.h"

namespace quire::hub {
namespace {

constexpr size_t kSha256Digits = 64, kSha1Digits = 40;

bool is_hexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

Digest::Digest(const EVP_MD* kind) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  check(context_ && EVP_DigestInit_ex(context_.get(), kind, nullptr) == 1, "OpenSSL does not compute hashes here");
}

std::optional<Digest> Digest::for_etag(std::string_view etag, int64_t bytes) {
  if (!is_hexadecimal(etag)) return std::nullopt;
  if (etag.size() == kSha256Digits) return Digest(EVP_sha256());
  if (etag.size() != kSha1Digits) return std::nullopt;
  Digest digest(EVP_sha1());
  digest.add(cat("blob ", bytes));
  digest.add(std::string_view("\0", 1));
  return digest;
}

void Digest::add(std::string_view bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "OpenSSL does not compute hashes here");
}

std::string Digest::finish() {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  check(EVP_DigestFinal_ex(context_.get(), bytes, &size) == 1, "OpenSSL does not compute hashes here");
  std::string text;
  for (unsigned int i = 0; i < size; ++i)
    text += {"0123456789abcdef"[bytes[i] >> 4], "0123456789abcdef"[bytes[i] & 15]};
  return text;
}

}  // namespace quire::hub
