// Bytes in base 64, as OpenSSL writes them.
#pragma once
#include <string>
#include <string_view>

namespace quire::serve {

std::string in_base64(std::string_view bytes);

}  // namespace quire::serve
