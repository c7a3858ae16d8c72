// Pieces of JSON for answers that are put together as text, because they grow and are sent many times.
#pragma once
#include <string>
#include <string_view>

namespace quire::serve {

std::string json_string(std::string_view text);                 // with its quotes
void append_escaped(std::string& json, std::string_view text);  // what stands between the quotes; whole characters
std::string json_number(double value);                          // null for what JSON has no number for
std::string json_number(float value);                           // as few digits as give the same float again

}  // namespace quire::serve
