#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "command_tree.h"
#include "option_words.h"
#include "shell_completion.h"

namespace quire {
namespace {

// An option's text inside the brackets of _arguments.
std::string zsh_text(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') escaped += '\\';
    escaped += letter;
  }
  return escaped;
}

std::string function_name(const std::string& words) {
  std::string name = "_quire";
  if (!words.empty()) name += "_" + words;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::string zsh_value(const CLI::Option& option) {
  if (!takes_value(option)) return "";
  const std::string choices = join_words(choices_of(option));
  return cat(":", value_name(option), ":", choices.empty() ? "_files" : cat("(", choices, ")"));
}

std::string zsh_argument(const CLI::App& command) {
  for (const CLI::Option* argument : positionals_of(command))
    if (!choices_of(*argument).empty()) return zsh_value(*argument);
  return ":file:_files";
}

void print_options(const CLI::App& command, std::ostream& script) {
  script << "  _arguments -C";
  for (const CLI::Option* option : options_of(command))
    for (const std::string& name : names_of(*option)) {
      const std::string text = cat("*", name, "[", zsh_text(option->get_description()), "]", zsh_value(*option));
      script << " \\\n    " << in_shell_quotes(text);
    }
}

void print_commands(const CommandPath& command, std::ostream& script) {
  std::string list;
  for (const CLI::App* below : commands_of(*command.app))
    list += cat(list.empty() ? "" : " ", below->get_name(), "\\:\"", zsh_text(below->get_description()), "\"");
  script << " \\\n    " << in_shell_quotes(cat("1:command:((", list, "))"))
         << " \\\n    '*::argument:->rest'\n  case $line[1] in\n";
  for (const CLI::App* below : commands_of(*command.app))
    script << "    " << below->get_name() << ") " << function_name(command.words) << '_' << below->get_name()
           << " ;;\n";
  script << "  esac\n";
}

void print_function(const CommandPath& command, std::ostream& script) {
  script << function_name(command.words) << "() {\n  local line state\n";
  print_options(*command.app, script);
  if (commands_of(*command.app).empty())
    script << " \\\n    " << in_shell_quotes(cat("*", zsh_argument(*command.app))) << '\n';
  else
    print_commands(command, script);
  script << "}\n";
}

}  // namespace

std::string zsh_completion(const CLI::App& program) {
  std::ostringstream script;
  script << "#compdef quire\n# zsh completion for quire, printed by `quire completion zsh`\n";
  std::vector<CommandPath> commands = all_commands(program);
  std::reverse(commands.begin(), commands.end());
  for (const CommandPath& command : commands) print_function(command, script);
  script << "if [[ $funcstack[1] == _quire ]]; then\n  _quire \"$@\"\nelse\n  compdef _quire quire\nfi\n";
  return script.str();
}

}  // namespace quire
