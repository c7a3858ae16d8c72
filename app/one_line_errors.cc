#include "one_line_errors.h"

#include <algorithm>
#include <filesystem>
#include <ios>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"

namespace quire {
namespace {

// "[json.exception.parse_error.101] parse error at line 2, column 1: ...": without what is in brackets.
std::string words_of(const nlohmann::json::exception& error) {
  const std::string_view text = error.what();
  const size_t end = text.starts_with('[') ? text.find("] ") : text.npos;
  const bool broken = dynamic_cast<const nlohmann::json::parse_error*>(&error);
  return cat(broken ? "not JSON: " : "not the JSON that is wanted: ", end == text.npos ? text : text.substr(end + 2));
}

std::string words_of(const std::exception& error) {
  using std::filesystem::filesystem_error;
  if (const auto* file = dynamic_cast<const filesystem_error*>(&error))
    return cat(file->path1().string(), ": ", file->code().message());
  if (dynamic_cast<const std::ios_base::failure*>(&error)) return "a file cannot be read or written";
  if (const auto* system = dynamic_cast<const std::system_error*>(&error))
    return cat("the system refuses: ", system->code().message());
  if (const auto* json = dynamic_cast<const nlohmann::json::exception*>(&error)) return words_of(*json);
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "there is not enough memory";
  return error.what();
}

}  // namespace

std::string in_plain_words(const std::exception& error) {
  std::string line = words_of(error);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace quire
