// Reads numbers and strings of a little-endian binary format, one after the other, never past the end.
//
// Memory   strings are views into the bytes.
// Errors   CheckError naming what was to be read, where, and how much there is; nothing is consumed.
#pragma once
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/check.h"

namespace quire {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the file");

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    check(count <= left(), what, " of ", count, " bytes at byte ", at_, " goes past the end, ", left(), " are left");
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }

  template <class T>
  requires std::is_arithmetic_v<T> &&(!std::same_as<T, bool>)T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  // A 64-bit length, then that many bytes.
  std::string_view text(std::string_view what) {
    const size_t begin = at_;
    try {
      const auto taken = take(number<uint64_t>(what), what);
      return {reinterpret_cast<const char*>(taken.data()), taken.size()};
    } catch (const CheckError&) {
      at_ = begin;
      throw;
    }
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace quire
