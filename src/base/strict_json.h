// JSON from outside, held to more than the grammar: an object at the top, limited depth, no key twice in one object.
//
// Two readers of one text must not see two different things, and a parser that keeps the last of two equal keys would
// let them.
//
// Errors   CheckError that says what is wrong and where; the caller adds the file.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

namespace quire {

// Depth 1 is an object of plain values.
nlohmann::json parse_strict_json(std::string_view text, int most_depth);

}  // namespace quire
