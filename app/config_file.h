// Options from a file, for a command that is started the same way again and again: TOML with the options' names,
//
//   model-path = "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
//   max-running-requests = 32
//   disable-radix-cache = true
//
// What the command line says goes before.
//
// Errors   CheckError, one line that names the file and the line in it: not readable, not TOML (toml.h), a name that
//          is no option, a value that it does not take.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace quire {

// Before   the command line has been parsed.
void apply_config_file(CLI::App& command, const std::string& path);

}  // namespace quire
