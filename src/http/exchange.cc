#include "http/exchange.h"

namespace quire::http {

std::string_view Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

}  // namespace quire::http
