#include "help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "base/check.h"
#include "base/in_quotes.h"
#include "command_tree.h"
#include "man_page.h"
#include "option_words.h"
#include "suggestion.h"
#include "usage_error.h"

namespace quire {
namespace {

std::string version() { return "quire " QUIRE_VERSION; }

// One line an option: its names, what it takes and the default; then what it is for and what is allowed.
class Look : public CLI::Formatter {
 public:
  Look() {
    label("SUBCOMMAND", "COMMAND");
    label("Positionals", "Arguments");
  }

  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override {
    constexpr std::string_view kHeading = "\nSubcommands:\n";
    std::string text = CLI::Formatter::make_subcommands(app, mode);
    if (text.starts_with(kHeading)) text.replace(0, kHeading.size(), "\nCommands:\n");
    return text;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->nonpositional() && takes_value(*option)) text += " " + value_name(*option);
    if (takes_value(*option) && !option->get_default_str().empty()) text += "=" + option->get_default_str();
    return text;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string allowed = allowed_by(*option), described = option->get_description();
    return allowed.empty() || described.empty() ? described + allowed : cat(described, "; ", allowed);
  }
};

const CLI::App& command_named(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  for (const std::string& word : words) {
    std::vector<std::string> names;
    for (const CLI::App* below : commands_of(*command)) names.push_back(below->get_name());
    if (std::find(names.begin(), names.end(), word) == names.end())
      throw UsageError(cat("there is no command ", in_quotes(word), did_you_mean(word, names)));
    command = command->get_subcommand(word);
  }
  return *command;
}

// CLI11 would show the help of the command that runs, which is this one; so the words before it are given.
void print_help(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App& command = command_named(program, words);
  const std::string before = command.get_parent() ? full_name(*command.get_parent()) : "";
  const std::string name = before.empty() ? command.get_name() : cat(before, " ", command.get_name());
  std::cout << command.get_formatter()->make_help(&command, name, CLI::AppFormatMode::Normal);
}

}  // namespace

void set_look_of_help(CLI::App& program) {
  program.formatter(std::make_shared<Look>());
  program.set_help_flag("-h,--help", "print this");
}

void add_help(CLI::App& program) {
  struct Options {
    std::vector<std::string> words;
    bool man = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* help = program.add_subcommand("help", "show what a command does and takes");
  help->add_option("COMMAND", options->words, "as in: help bench serving; without one, the commands are listed");
  help->add_flag("--man", options->man, "print the manual page of all commands, as roff");
  help->callback([options, &program] {
    if (options->man)
      std::cout << man_page(program, version());
    else
      print_help(program, options->words);
  });
  program.add_subcommand("version", "print the version")->callback([] { std::cout << version() << '\n'; });
  program.set_version_flag("--version", version(), "print the version");
}

}  // namespace quire
