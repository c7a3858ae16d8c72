// `quire tokenize`: text to token ids and back, line by line, for people and scripts that compare tokenizers.
//
//   quire tokenize [FILE|-] [--no-special] [--parse-special] [--json]
//   quire tokenize --detokenize [FILE|-] [--skip-special] [--json]
//
// Each line of text gives one line of ids. With --json a line of text is a JSON string, so that it can hold line breaks
// and anything else, and ids are a JSON array; without, a line is itself and ids have spaces between them.
#pragma once

namespace CLI {
class App;
}

namespace quire {

// Adds the subcommand. Its callback throws CLI::RuntimeError with the exit code 2 after one line on standard error,
// when the model or a line of the input is bad.
void add_tokenize(CLI::App& app);

}  // namespace quire
