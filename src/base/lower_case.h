// Letters of ASCII made small, and nothing else: for names of headers, schemes and hosts, whatever the locale.
#pragma once
#include <string>
#include <string_view>

namespace quire {

inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

}  // namespace quire
