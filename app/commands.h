// The commands of the program, one function each, which adds it to the command line; what a command does is told at the
// top of its own file. Where the exit code is not 0 its callback throws CLI::RuntimeError with it, after one line on
// standard error.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace quire {

void add_serve(CLI::App& program);
void add_chat(CLI::App& program);
void add_generate(CLI::App& program);
void add_models(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_template(CLI::App& program);
void add_inspect(CLI::App& program);
void add_inspect_attention(CLI::App& inspect);
void add_inspect_logits(CLI::App& inspect);
void add_inspect_model(CLI::App& inspect);

namespace bench {

// command: the line that was typed, which is recorded with the results.
void add_bench(CLI::App& program, const std::string& command);
void add_throughput(CLI::App& bench, const std::string& command);
void add_serving(CLI::App& bench, const std::string& command);
void add_profile(CLI::App& bench, const std::string& command);
void add_speculation(CLI::App& bench, const std::string& command);

}  // namespace bench
}  // namespace quire
