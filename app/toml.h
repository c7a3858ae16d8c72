// The part of TOML that options need: keys with a text, a number, true, false, or an array of these.
//
//   port = 30000                 # a comment
//   api-key = ["one", 'two']
//
// Errors   CheckError that begins with the line: "line 3: ...". Tables, dates, texts of several lines and a key that is
//          set twice are refused.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace quire {

struct TomlEntry {
  int line;
  std::string key;
  std::vector<std::string> values;  // one, or those of an array; as they would stand on a command line
};

std::vector<TomlEntry> read_toml(std::string_view text);

}  // namespace quire
