#include "usage_error.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"
#include "command_tree.h"
#include "option_words.h"
#include "suggestion.h"

namespace quire {
namespace {

// The command that was reached.
const CLI::App& command_of(const CLI::App& program) {
  const std::vector<CLI::App*> below = program.get_subcommands();
  return below.empty() ? program : command_of(*below.back());
}

bool is_part_of_name(char letter) { return std::isalnum(static_cast<unsigned char>(letter)) || letter == '-'; }

size_t find_name(std::string_view text, const std::string& name) {
  for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !is_part_of_name(text[at - 1])) && (end == text.size() || !is_part_of_name(text[end]))) return at;
  }
  return text.npos;
}

// The options that an error of CLI11 names, in its order. Its own words are not for people.
std::vector<const CLI::Option*> named_in(const CLI::ParseError& error, const CLI::App& command) {
  const std::string text = error.what();
  std::vector<const CLI::Option*> named;
  for (const CLI::Option* option : command.get_options({}))
    if (find_name(text, option->get_name()) != text.npos) named.push_back(option);
  std::stable_sort(named.begin(), named.end(), [&](const CLI::Option* a, const CLI::Option* b) {
    return find_name(text, a->get_name()) < find_name(text, b->get_name());
  });
  return named;
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* below : commands_of(command)) names.push_back(below->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(command))
    for (std::string& name : names_of(*option)) names.push_back(std::move(name));
  return names;
}

// The first argument that nothing took.
std::string explain_extra(const CLI::App& command, const std::string& extra) {
  if (extra.starts_with('-')) {
    const std::string name = extra.substr(0, extra.find('='));
    return cat("there is no option ", name, did_you_mean(name, option_names(command)));
  }
  const std::vector<std::string> commands = command_names(command);
  if (commands.empty()) return cat("takes no further argument, and was given ", in_quotes(extra));
  std::string meant = did_you_mean(extra, commands);
  if (meant.empty()) meant = cat("; there are ", join_words(commands, ", "));
  return cat("there is no command ", in_quotes(extra), meant);
}

std::string explain_missing(const CLI::ParseError& error, const CLI::App& command) {
  if (const auto named = named_in(error, command); !named.empty()) return cat(named[0]->get_name(), " is missing");
  return cat("a command is missing: one of ", join_words(command_names(command), ", "));
}

std::string explain_pair(const CLI::ParseError& error, const CLI::App& command) {
  const auto named = named_in(error, command);
  if (named.size() < 2) return "these options do not go together";
  const std::string first = named[0]->get_name(), second = named[1]->get_name();
  if (dynamic_cast<const CLI::RequiresError*>(&error)) return cat(first, " needs ", second);
  return cat(first, " and ", second, " do not go together");
}

std::string explain(const CLI::App& program, const CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> extras = program.remaining(true);
  const bool is_missing = dynamic_cast<const CLI::RequiredError*>(&error);
  if (!extras.empty() && (is_missing || dynamic_cast<const CLI::ExtrasError*>(&error)))
    return explain_extra(command, extras.front());
  if (is_missing) return explain_missing(error, command);
  if (dynamic_cast<const CLI::RequiresError*>(&error) || dynamic_cast<const CLI::ExcludesError*>(&error))
    return explain_pair(error, command);
  if (const auto named = named_in(error, command); !named.empty()) return explain_value(*named[0], error);
  return "these arguments cannot be understood";
}

std::string two_lines(const CLI::App& command, const std::string& reason) {
  const char* what = commands_of(command).empty() ? "options" : "commands";
  return cat(full_name(command), ": ", reason, "\n`", full_name(command), " --help` lists the ", what, "\n");
}

}  // namespace

std::string explain_value(const CLI::Option& option, const CLI::ParseError& error) {
  const std::string name = option.get_name(), given = join_words(option.results(), ",");
  if (!takes_value(option)) return cat(name, " takes no value");
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error))
    return cat(name, option.results().empty() ? " needs a value" : " is given more than once");
  if (const std::string allowed = allowed_by(option); !allowed.empty())
    return cat(name, " is ", allowed, "; not ", in_quotes(given));
  return cat(name, " takes ", kind_of_value(option), ", not ", in_quotes(given));
}

std::string explain_usage(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& command = command_of(program);
  return two_lines(command, explain(program, command, error));
}

std::string explain_usage(const CLI::App& program, const UsageError& error) {
  return two_lines(command_of(program), error.what());
}

}  // namespace quire
