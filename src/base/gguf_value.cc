#include "base/gguf_value.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <limits>

#include "base/in_quotes.h"

namespace quire {
namespace {

using Array = GgufFile::Array;
using Value = GgufFile::Value;

enum Type : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

struct TypeFacts {
  const char* name;
  uint32_t bytes;  // least bytes of a value: all of a number, the length of a string
};
// In the order of Type.
constexpr TypeFacts kTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 8}, {"array", 12},
                                {"u64", 8}, {"i64", 8}, {"f64", 8}};
static_assert(std::size(kTypes) == f64 + 1);

// Walks over the elements. The count is held against the bytes that are left before it is multiplied.
Array read_array(ByteReader& reader) {
  const auto type = reader.number<uint32_t>("the element type of an array");
  const auto count = reader.number<uint64_t>("the count of an array");
  check(type < std::size(kTypes), "an array has elements of type ", type, ", which does not exist");
  check(type != array, "is an array of arrays, which quire does not read");
  check(count <= reader.left() / kTypes[type].bytes, "an array of ", count, " elements of type ", kTypes[type].name,
        " goes past the end, ", reader.left(), " bytes are left");
  if (type != string) return {type, count, reader.take(count * kTypes[type].bytes, "an array")};
  ByteReader walk = reader;
  for (uint64_t i = 0; i < count; ++i) walk.text("a string of an array");
  return {type, count, reader.take(walk.position() - reader.position(), "an array")};
}

template <class Wide, class Narrow>
Value widened(ByteReader& reader) {
  return static_cast<Wide>(reader.number<Narrow>("a value"));
}

std::string shown(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

std::string shown(const Array& value) {
  constexpr size_t kShown = 4;
  std::string text = cat("[", value.count, " of type ", gguf_type_name(value.type));
  const char* separator = ": ";
  for (const Value& element : first_elements(value, kShown)) {
    text += cat(separator, element);
    separator = ", ";
  }
  return text + (value.count > kShown ? ", ...]" : "]");
}

// The alternative that was asked for, or an error that shows what is there in its place.
template <class T>
const T& get(const Value& value, const char* wanted) {
  constexpr const char* kKinds[] = {"the flag ",   "the integer ", "the integer ",
                                    "the number ", "the string ",  "the array "};
  const T* found = std::get_if<T>(&value);
  check(found != nullptr, "is ", kKinds[value.index()], value, ", not ", wanted);
  return *found;
}

}  // namespace

const char* gguf_type_name(uint32_t type) { return type < std::size(kTypes) ? kTypes[type].name : "unknown"; }

Value read_gguf_value(ByteReader& reader, uint32_t type) {
  switch (type) {
    case u8:
      return widened<uint64_t, uint8_t>(reader);
    case i8:
      return widened<int64_t, int8_t>(reader);
    case u16:
      return widened<uint64_t, uint16_t>(reader);
    case i16:
      return widened<int64_t, int16_t>(reader);
    case u32:
      return widened<uint64_t, uint32_t>(reader);
    case i32:
      return widened<int64_t, int32_t>(reader);
    case f32:
      return widened<double, float>(reader);
    case boolean:
      return reader.number<uint8_t>("a value") != 0;
    case string:
      return reader.text("a string");
    case array:
      return read_array(reader);
    case u64:
      return widened<uint64_t, uint64_t>(reader);
    case i64:
      return widened<int64_t, int64_t>(reader);
    case f64:
      return widened<double, double>(reader);
    default:
      throw CheckError(cat("has type ", type, ", which does not exist"));
  }
}

std::vector<Value> first_elements(const Array& array, size_t most) {
  ByteReader reader(array.bytes);
  std::vector<Value> elements;
  for (uint64_t i = 0; i < std::min<uint64_t>(array.count, most); ++i)
    elements.push_back(read_gguf_value(reader, array.type));
  return elements;
}

bool to_flag(const Value& value) { return get<bool>(value, "a flag"); }

int64_t to_integer(const Value& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  const uint64_t number = get<uint64_t>(value, "an integer");
  check(number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), "is ", number,
        ", more than a signed 64-bit integer holds");
  return static_cast<int64_t>(number);
}

double to_number(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  return static_cast<double>(get<uint64_t>(value, "a number"));
}

std::string_view to_text(const Value& value) { return get<std::string_view>(value, "a string"); }

const Array& to_array(const Value& value) { return get<Array>(value, "an array"); }

std::string to_string(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<uint64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&value)) return shown(*number);
  if (const auto* text = std::get_if<std::string_view>(&value)) return in_quotes(*text);
  return shown(std::get<Array>(value));
}

}  // namespace quire
