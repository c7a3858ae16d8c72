#include <CLI/CLI.hpp>
#include <sstream>

#include "base/check.h"
#include "command_tree.h"
#include "option_words.h"
#include "shell_completion.h"

namespace quire {
namespace {

std::string fish_condition(const std::string& words) {
  if (words.empty()) return "__fish_use_subcommand";
  std::istringstream each(words);
  std::string condition;
  for (std::string word; each >> word;)
    condition += cat(condition.empty() ? "" : "; and ", "__fish_seen_subcommand_from ", word);
  return condition;
}

std::string fish_names(const CLI::Option& option) {
  std::string text;
  for (const std::string& name : option.get_snames()) text += " -s " + name;
  for (const std::string& name : option.get_lnames()) text += " -l " + name;
  return text;
}

}  // namespace

std::string fish_completion(const CLI::App& program) {
  std::ostringstream script;
  script << "# fish completion for quire, printed by `quire completion fish`\n";
  for (const CommandPath& command : all_commands(program)) {
    const std::string begin = cat("complete -c quire -n ", in_shell_quotes(fish_condition(command.words)));
    for (const CLI::App* below : commands_of(*command.app))
      script << begin << " -f -a " << below->get_name() << " -d " << in_shell_quotes(below->get_description()) << '\n';
    for (const CLI::Option* argument : positionals_of(*command.app))
      if (const std::string choices = join_words(choices_of(*argument)); !choices.empty())
        script << begin << " -f -a " << in_shell_quotes(choices) << '\n';
    for (const CLI::Option* option : options_of(*command.app)) {
      const std::string choices = join_words(choices_of(*option));
      script << begin << fish_names(*option) << " -d " << in_shell_quotes(option->get_description());
      if (takes_value(*option)) script << " -r";
      if (!choices.empty()) script << " -f -a " << in_shell_quotes(choices);
      script << '\n';
    }
  }
  return script.str();
}

}  // namespace quire
