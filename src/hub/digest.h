// What a file must be to be kept, as far as its ETag tells: the hub's large files have their SHA-256 there, its small
// ones the id of their git blob (a SHA-1 over "blob LENGTH", a zero byte, and the bytes).
#pragma once
#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace quire::hub {

class Digest {
 public:
  // Of `bytes` bytes. None: the ETag is neither of the two.
  static std::optional<Digest> for_etag(std::string_view etag, int64_t bytes);

  void add(std::string_view bytes);
  std::string finish();  // in hexadecimal, as an ETag has it; once

 private:
  explicit Digest(const EVP_MD* kind);

  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

}  // namespace quire::hub
