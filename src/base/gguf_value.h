// The values of a GGUF file's metadata, one by one: read from bytes, and turned into what a caller asks for.
//
// Errors   CheckError that says what is wrong with the value; the caller adds the key and the file.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/byte_reader.h"
#include "base/gguf.h"

namespace quire {

// Reads a value of the type that the file numbers so. Arrays are walked to their end, so that later reads of their
// elements cannot fail; arrays of arrays are refused.
GgufFile::Value read_gguf_value(ByteReader& reader, uint32_t type);

const char* gguf_type_name(uint32_t type);  // "u32", "string"; "unknown" for numbers that no type has

// Widening only: a value of another kind, or one that does not fit, throws.
bool to_flag(const GgufFile::Value& value);
int64_t to_integer(const GgufFile::Value& value);
double to_number(const GgufFile::Value& value);  // integers too
std::string_view to_text(const GgufFile::Value& value);
const GgufFile::Array& to_array(const GgufFile::Value& value);

}  // namespace quire
