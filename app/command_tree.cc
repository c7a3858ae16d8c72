#include "command_tree.h"

namespace quire {
namespace {

void collect(const CLI::App& command, const std::string& words, std::vector<CommandPath>& all) {
  all.push_back({words, &command});
  for (const CLI::App* below : commands_of(command))
    collect(*below, words + (words.empty() ? "" : " ") + below->get_name(), all);
}

}  // namespace

std::vector<CommandPath> all_commands(const CLI::App& program) {
  std::vector<CommandPath> all;
  collect(program, "", all);
  return all;
}

std::vector<const CLI::App*> commands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* below) { return !below->get_name().empty(); });
}

std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string join_words(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* above = command.get_parent();
  return above ? full_name(*above) + " " + command.get_name() : command.get_name();
}

}  // namespace quire
