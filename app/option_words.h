// What an option takes, in words of our own: for the help, the manual page, completions and errors alike. Read from the
// checks that the option was given (CLI::Range, CLI::IsMember, CLI::PositiveNumber).
#pragma once
#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace quire {

bool takes_value(const CLI::Option& option);                     // false: a flag
std::string value_name(const CLI::Option& option);               // "N", "X" (may have a fraction), "TEXT"; "": a flag
std::string kind_of_value(const CLI::Option& option);            // "a whole number", "a number", "a text", ...
std::vector<std::string> choices_of(const CLI::Option& option);  // {}: anything
std::string allowed_by(const CLI::Option& option);               // "from 1 to 64", "one of a, b"; "": anything

}  // namespace quire
