// How a subcommand that reads what people give it fails: one line on standard error, exit code 2.
#pragma once
#include <algorithm>
#include <exception>
#include <iostream>
#include <string>

namespace quire {

inline constexpr int kBadInput = 2;

// Runs `body`; whatever is wrong with what it was given becomes one line that begins with the command.
template <class Body>
int with_one_line_errors(const char* command, Body&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::cerr << "quire " << command << ": " << line << '\n';
    return kBadInput;
  }
}

}  // namespace quire
