// `quire inspect model [MODEL] [--json]`: what is in a model's files, for people who wonder whether quire can run them.
//
// MODEL is a GGUF file or a Hugging Face folder. Prints the facts of the architecture, the metadata with long values
// shortened, every tensor, and totals for each type of tensor.
#pragma once

namespace CLI {
class App;
}

namespace quire {

// Adds the subcommand. What is wrong with the files leaves its callback as a CheckError, before anything is printed.
void add_inspect_model(CLI::App& inspect);

}  // namespace quire
