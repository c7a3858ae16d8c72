#include "config_file.h"

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

std::vector<CLI::ConfigItem> items_of(const std::string& path) {
  try {
    return CLI::ConfigTOML().from_file(path);
  } catch (const CLI::Error& error) {
    throw CheckError(cat("the config file ", path, " cannot be read: ", error.what()));
  }
}

void apply(const CLI::ConfigItem& item, CLI::App& command, const std::string& path) {
  CLI::Option* option = command.get_option_no_throw("--" + item.name);
  check(option && item.parents.empty() && item.name != "help" && item.name != "config", path, ": ",
        in_quotes(item.fullname()), " is no option of quire ", command.get_name());
  if (option->count() > 0) return;  // on the command line
  try {
    if (option->get_expected_max() == 0)
      option->add_result(CLI::ConfigTOML().to_flag(item));
    else
      option->add_result(item.inputs);
    option->run_callback();
  } catch (const CLI::Error& error) {
    throw CheckError(cat(path, ": ", error.what()));
  }
}

}  // namespace

void apply_config_file(CLI::App& command, const std::string& path) {
  for (const CLI::ConfigItem& item : items_of(path)) apply(item, command, path);
}

}  // namespace quire
