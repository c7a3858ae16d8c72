// `quire generate`: continues a text, or answers a message, and is done. Text goes to standard output as it comes, and
// a line end after it; the figures go to standard error. `--json` prints one object with everything instead.
#pragma once

namespace CLI {
class App;
}

namespace quire {

// Adds the subcommand. When Ctrl-C ended the text its callback throws CLI::RuntimeError with the exit code of that.
void add_generate(CLI::App& app);

}  // namespace quire
