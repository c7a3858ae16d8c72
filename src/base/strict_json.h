// JSON from outside, held to more than the grammar: an object at the top, limited depth, no key twice in one object.
//
// Two readers of one text must not see two different things, and a parser that keeps the last of two equal keys would
// let them.
//
// Cost     n log n in the keys of an object, linear in all else.
// Errors   CheckError that says what is wrong and where; the caller adds the file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace quire {

// Depth 1 is an object of plain values.
nlohmann::json parse_strict_json(std::string_view text, int most_depth);

// Keeping the order of keys makes finding one slow, and small values take many times their text in memory (a value 16
// bytes, a key 48, a string 32 more), so that texts from strangers are also limited in these.
struct JsonLimits {
  int depth;
  int64_t keys;    // of one object
  int64_t values;  // in all, objects and arrays included
};
nlohmann::json parse_strict_json(std::string_view text, const JsonLimits& limits);
nlohmann::ordered_json parse_strict_ordered_json(std::string_view text, const JsonLimits& limits);

// A file of at most so many bytes; every refusal, and what cannot be opened, begins with the path.
nlohmann::json read_json_file(const std::string& path, size_t most_bytes, const JsonLimits& limits);
nlohmann::json read_json_file(const std::string& path, size_t most_bytes, int most_depth);

}  // namespace quire
