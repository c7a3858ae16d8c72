// `quire chat`: a conversation at the terminal, or one turn for each line of a pipe.
#pragma once

namespace CLI {
class App;
}

namespace quire {

// Adds the subcommand. When Ctrl-C ended a conversation that nobody types, or a message of one was refused, its
// callback throws CLI::RuntimeError with the exit code of that.
void add_chat(CLI::App& app);

}  // namespace quire
