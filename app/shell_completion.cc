#include "shell_completion.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

namespace quire {

std::string in_shell_quotes(std::string_view text) {
  std::string shown = "'";
  for (const char letter : text) shown += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return shown + "'";
}

void add_completion(CLI::App& program) {
  CLI::App* completion =
      program.add_subcommand("completion", "print a script that completes quire's commands in a shell");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("SHELL", *shell, "whose script")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([shell, &program] {
    const auto script = *shell == "bash" ? bash_completion : *shell == "zsh" ? zsh_completion : fish_completion;
    std::cout << script(program);
  });
}

}  // namespace quire
