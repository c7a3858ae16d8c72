// How a command that reads what people give it fails: one line on standard error, exit code 2.
#pragma once
#include <exception>
#include <iostream>
#include <string>

namespace quire {

inline constexpr int kBadInput = 2;

// What is wrong, in one line. Our own errors say it themselves; of those of libraries only what people can use is kept:
// the path and the system's reason, the place in a JSON text.
std::string in_plain_words(const std::exception& error);

// Runs `body`; whatever is wrong with what it was given becomes one line that begins with the command.
template <class Body>
int with_one_line_errors(const char* command, Body&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "quire " << command << ": " << in_plain_words(error) << '\n';
    return kBadInput;
  }
}

}  // namespace quire
