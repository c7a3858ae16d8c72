// Bytes as people say them: "98 MB".
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>

namespace quire {

inline std::string size_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto amount = static_cast<double>(bytes);
  int unit = 0;
  for (; amount >= 999.5; ++unit) amount /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit >= 3 && amount < 100 ? "%.1f %s" : "%.0f %s", amount, kUnits[unit]);
  return text;
}

}  // namespace quire
