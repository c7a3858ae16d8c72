// The program's commands as a list, for whatever is made of all of them: the manual page, completions, suggestions.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace quire {

struct CommandPath {
  std::string words;  // "bench serving"; "": the program itself
  const CLI::App* app;
};

// The program first, every command before its own.
std::vector<CommandPath> all_commands(const CLI::App& program);

std::vector<const CLI::App*> commands_of(const CLI::App& command);
std::vector<const CLI::Option*> options_of(const CLI::App& command);      // those with a dash
std::vector<const CLI::Option*> positionals_of(const CLI::App& command);  // those without; one may be in both

std::vector<std::string> names_of(const CLI::Option& option);  // "-m", "--model", ...

std::string join_words(const std::vector<std::string>& words, const char* separator = " ");

// The command as it is typed: "quire bench serving".
std::string full_name(const CLI::App& command);

}  // namespace quire
