// What is said to somebody whose command line cannot be understood: one line with the command, the argument and what it
// takes, and one that says where the options are listed.
//
//   quire serve: --threads is from 0 to 1024, not 4096
//   `quire serve --help` lists the options
#pragma once
#include <stdexcept>
#include <string>

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace quire {

// Of a command that finds by itself that its arguments do not go together.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Before   program.parse() has thrown this error.
std::string explain_usage(const CLI::App& program, const CLI::ParseError& error);
std::string explain_usage(const CLI::App& program, const UsageError& error);

// The error's first line without the command, for an option that a file sets (config_file.h).
std::string explain_value(const CLI::Option& option, const CLI::ParseError& error);

}  // namespace quire
