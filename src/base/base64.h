// Bytes in base 64, as OpenSSL writes them: for rooms that link it.
#pragma once
#include <openssl/evp.h>

#include <limits>
#include <string>
#include <string_view>

#include "base/check.h"

namespace quire {

inline std::string in_base64(std::string_view bytes) {
  check(bytes.size() <= std::numeric_limits<int>::max() / 2, bytes.size(), " bytes are too many for base 64");
  std::string letters(4 * ((bytes.size() + 2) / 3), '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(letters.data()),
                  reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  return letters;
}

}  // namespace quire
