#include "serve/ignored.h"

namespace quire::serve {
namespace {

constexpr size_t kMostBytesOfAName = 120;

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

char header_letter(char byte) {
  constexpr std::string_view kMarks = "_-.$#/[]";
  const bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || is_digit(byte);
  return plain || kMarks.find(byte) != kMarks.npos ? byte : '?';
}

std::string header_name(std::string_view path) {
  std::string name;
  for (size_t at = 0; at < path.size() && name.size() < kMostBytesOfAName; ++at) {
    const bool is_place = is_digit(path[at]) && !name.empty() && name.back() == '[';
    if (is_place)
      while (at < path.size() && is_digit(path[at])) ++at;
    if (at < path.size()) name += header_letter(path[at]);
  }
  return name;
}

}  // namespace

void Ignored::add(std::string_view path) {
  constexpr std::string_view kMore = ", ...";
  if (full_) return;
  const std::string name = header_name(path);
  if (!names_.insert(name).second) return;
  full_ = header_.size() + name.size() + 2 + kMore.size() > kMostBytes;
  if (full_)
    header_ += kMore;
  else
    header_.append(header_.empty() ? "" : ", ").append(name);
}

}  // namespace quire::serve
