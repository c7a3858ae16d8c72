#include "config_file.h"

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "base/in_quotes.h"
#include "command_tree.h"
#include "option_words.h"
#include "read_input.h"
#include "suggestion.h"
#include "toml.h"
#include "usage_error.h"

namespace quire {
namespace {

std::vector<TomlEntry> entries_of(const std::string& path) {
  const std::string text = read_file(path, "config file");
  try {
    return read_toml(text);
  } catch (const CheckError& error) {
    throw CheckError(cat(path, ", ", error.what()));
  }
}

std::vector<std::string> settable(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(command))
    for (const std::string& name : option->get_lnames())
      if (name != "help" && name != "config") names.push_back(name);
  return names;
}

void apply(const TomlEntry& entry, CLI::App& command, const std::string& path) {
  const std::vector<std::string> names = settable(command);
  check(std::find(names.begin(), names.end(), entry.key) != names.end(), path, ", line ", entry.line, ": ",
        in_quotes(entry.key), " is no option of quire ", command.get_name(), did_you_mean(entry.key, names));
  CLI::Option* option = command.get_option("--" + entry.key);
  if (option->count() > 0) return;  // on the command line
  const bool is_truth = entry.values == std::vector<std::string>{"true"} || entry.values == std::vector<std::string>{"false"};
  check(takes_value(*option) || is_truth, path, ", line ", entry.line, ": ", option->get_name(), " is true or false");
  try {
    option->add_result(entry.values);
    option->run_callback();
  } catch (const CLI::ParseError& error) {
    throw CheckError(cat(path, ", line ", entry.line, ": ", explain_value(*option, error)));
  }
}

}  // namespace

void apply_config_file(CLI::App& command, const std::string& path) {
  for (const TomlEntry& entry : entries_of(path)) apply(entry, command, path);
}

}  // namespace quire
