// `quire completion bash|zsh|fish`: a script that completes commands, options and their choices in that shell, made
// from the command line itself. `cmake --install` puts them where the shells look.
#pragma once
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace quire {

void add_completion(CLI::App& program);

std::string bash_completion(const CLI::App& program);
std::string zsh_completion(const CLI::App& program);
std::string fish_completion(const CLI::App& program);

std::string in_shell_quotes(std::string_view text);  // one word for any of them, whatever is in it

}  // namespace quire
