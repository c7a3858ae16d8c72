// One way to refuse: a broken precondition throws CheckError, whose text names what was wrong and shows
// the offending values. Checks stand at the door of an operation, before any work and any change.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace quire {

class CheckError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
inline void append(std::string& text, std::string_view part) { text += part; }
template <class T>
requires std::is_arithmetic_v<T>
void append(std::string& text, T value) { text += std::to_string(value); }
template <class T>
requires requires(const T& value) { to_string(value); }
void append(std::string& text, const T& value) { text += to_string(value); }
}  // namespace detail

// Concatenates text, numbers and anything with a to_string of its own.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

template <class... Parts>
void check(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw CheckError(cat(parts...));
}

}  // namespace quire
