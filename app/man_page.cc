#include "man_page.h"

#include <CLI/CLI.hpp>
#include <sstream>

#include "base/check.h"
#include "command_tree.h"
#include "option_words.h"

namespace quire {
namespace {

// Text as roff takes it: its dashes are minus signs that can be copied, and no line is taken for a request.
std::string roff(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if ((letter == '.' || letter == '\'') && (escaped.empty() || escaped.back() == '\n')) escaped += "\\&";
    if (letter == '\\')
      escaped += "\\e";
    else if (letter == '-')
      escaped += "\\-";
    else
      escaped += letter;
  }
  return escaped;
}

std::string bold(std::string_view text) { return cat("\\fB", roff(text), "\\fR"); }
std::string slanted(std::string_view text) { return cat("\\fI", roff(text), "\\fR"); }

std::string names_and_value(const CLI::Option& option) {
  std::string text;
  for (const std::string& name : names_of(option)) text += (text.empty() ? "" : ", ") + bold(name);
  if (takes_value(option)) text += " " + slanted(value_name(option));
  return text;
}

void print_entry(const std::string& heading, const CLI::Option& option, std::ostream& page) {
  page << ".TP\n" << heading << '\n' << roff(option.get_description());
  if (const std::string allowed = allowed_by(option); !allowed.empty()) page << "; " << roff(allowed);
  if (takes_value(option) && !option.get_default_str().empty())
    page << " (default: " << roff(option.get_default_str()) << ')';
  page << '\n';
}

std::string synopsis(const CLI::App& command) {
  std::string text = bold(full_name(command));
  if (!options_of(command).empty()) text += " [" + slanted("OPTIONS") + "]";
  for (const CLI::Option* argument : positionals_of(command)) {
    const std::string name = slanted(argument->get_name(true));
    text += argument->get_required() ? " " + name : cat(" [", name, "]");
  }
  return text;
}

void print_command(const CLI::App& command, std::ostream& page) {
  page << ".SS " << full_name(command) << '\n'
       << roff(command.get_description()) << "\n.PP\n"
       << synopsis(command) << '\n';
  for (const CLI::Option* argument : positionals_of(command))
    if (!argument->nonpositional()) print_entry(slanted(argument->get_name(true)), *argument, page);
  for (const CLI::Option* option : options_of(command))
    if (option != command.get_help_ptr()) print_entry(names_and_value(*option), *option, page);
}

}  // namespace

std::string man_page(const CLI::App& program, const std::string& version) {
  std::ostringstream page;
  page << ".TH QUIRE 1 \"\" \"" << version << "\" \"User Commands\"\n"
       << ".SH NAME\nquire \\- " << roff(program.get_description()) << "\n.SH SYNOPSIS\n"
       << bold("quire") << ' ' << slanted("COMMAND") << " [" << slanted("OPTIONS") << "]\n.SH COMMANDS\n";
  for (const CommandPath& command : all_commands(program))
    if (command.app->get_require_subcommand_min() == 0) print_command(*command.app, page);  // does something by itself
  page << ".SH NOTES\n.nf\n" << roff(program.get_footer()) << "\n.fi\n";
  return page.str();
}

}  // namespace quire
