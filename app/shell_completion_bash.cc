#include <CLI/CLI.hpp>
#include <sstream>

#include "base/check.h"
#include "command_tree.h"
#include "option_words.h"
#include "shell_completion.h"

namespace quire {
namespace {

// What may follow a command: the commands below it, what it may be given, and its options.
std::string words_after(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::Option* argument : positionals_of(command))
    for (const std::string& choice : choices_of(*argument)) words.push_back(choice);
  for (const CLI::App* below : commands_of(command)) words.push_back(below->get_name());
  for (const CLI::Option* option : options_of(command))
    for (const std::string& name : names_of(*option)) words.push_back(name);
  return join_words(words);
}

// "serve --isa|serve -t": these options of a command, as patterns of a case.
std::string patterns(const std::string& command, const CLI::Option& option) {
  std::string text;
  for (const std::string& name : names_of(option))
    text += (text.empty() ? "" : "|") + in_shell_quotes(cat(command, " ", name));
  return text;
}

void print_bash_values(const CommandPath& command, std::ostream& script) {
  for (const CLI::Option* option : options_of(*command.app))
    if (takes_value(*option))
      script << "    " << patterns(command.words, *option)
             << ") values=" << in_shell_quotes(join_words(choices_of(*option))) << "; wanted=1 ;;\n";
}

}  // namespace

// The command is found from the words before the cursor. Where a value is wanted and may be anything there is no
// answer, and bash completes the name of a file.
std::string bash_completion(const CLI::App& program) {
  const std::vector<CommandPath> commands = all_commands(program);
  std::ostringstream script;
  script << "# bash completion for quire, printed by `quire completion bash`\n_quire() {\n"
            "  local cursor=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= word wanted= values= "
            "words=\n"
            "  COMPREPLY=()\n  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case \"${command:+$command "
            "}$word\" in\n      ";
  for (size_t i = 1; i < commands.size(); ++i) script << (i > 1 ? "|" : "") << in_shell_quotes(commands[i].words);
  script << ") command=\"${command:+$command }$word\" ;;\n    esac\n  done\n  case \"$command $before\" in\n";
  for (const CommandPath& command : commands) print_bash_values(command, script);
  script << "  esac\n  if [[ $wanted ]]; then\n    COMPREPLY=($(compgen -W \"$values\" -- \"$cursor\"))\n    return\n  "
            "fi\n  case \"$command\" in\n";
  for (const CommandPath& command : commands)
    script << "    " << in_shell_quotes(command.words) << ") words=" << in_shell_quotes(words_after(*command.app))
           << " ;;\n";
  script << "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cursor\"))\n}\ncomplete -o default -F _quire quire\n";
  return script.str();
}

}  // namespace quire
