// For tests: the bytes of a GGUF file, put down piece by piece, true or not.
#pragma once
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace quire {

// The numbers that files give to types of values and to types of tensors.
namespace gguf_type {
enum : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
enum : uint32_t { tensor_f32 = 0, tensor_f16 = 1, tensor_q4_1 = 3, tensor_q8_0 = 8, tensor_iq2_xxs = 16 };
}  // namespace gguf_type

class GgufBytes {
 public:
  GgufBytes(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    raw("GGUF").number(version).number(tensors).number(keys);
  }

  const std::string& str() const { return bytes_; }

  GgufBytes& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  template <class T>
  requires std::is_arithmetic_v<T> GgufBytes& number(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    return raw({bytes, sizeof(T)});
  }
  GgufBytes& text(std::string_view value) { return number(uint64_t{value.size()}).raw(value); }

  template <class T>
  GgufBytes& key(std::string_view name, uint32_t type, T value) {
    return text(name).number(type).number(value);
  }
  GgufBytes& key_u32(std::string_view name, uint32_t value) { return key(name, gguf_type::u32, value); }
  GgufBytes& key_text(std::string_view name, std::string_view value) {
    return text(name).number(uint32_t{gguf_type::string}).text(value);
  }
  // The elements follow as numbers or texts.
  GgufBytes& key_array(std::string_view name, uint32_t type, uint64_t count) {
    return text(name).number(uint32_t{gguf_type::array}).number(type).number(count);
  }

  // Dimensions as the file has them: the contiguous one first.
  GgufBytes& tensor(std::string_view name, std::initializer_list<uint64_t> dims, uint32_t type, uint64_t offset) {
    text(name).number(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) number(dim);
    return number(type).number(offset);
  }
  GgufBytes& pad(size_t alignment = 32) {
    return raw(std::string((alignment - bytes_.size() % alignment) % alignment, '\0'));
  }
  GgufBytes& data(size_t count, char byte = '\1') { return raw(std::string(count, byte)); }

 private:
  std::string bytes_;
};

}  // namespace quire
