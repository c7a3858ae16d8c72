#include <CLI/CLI.hpp>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "bench.h"
#include "chat.h"
#include "generate.h"
#include "inspect.h"
#include "model_path.h"
#include "models.h"
#include "serve.h"
#include "template.h"
#include "tokenize.h"

namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

// The command as a person would repeat it: without the folder that the program happens to lie in.
std::string command_line(int argc, char** argv) {
  std::string command = std::filesystem::path(argv[0]).filename();
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return command;
}

int run(int argc, char** argv) {
  CLI::App app{"quire: an LLM serving engine"};
  app.set_version_flag("--version", "quire " QUIRE_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);
  quire::add_serve(app);
  quire::add_generate(app);
  quire::add_chat(app);
  quire::add_models(app);
  quire::add_inspect(app);
  quire::add_template(app);
  quire::add_tokenize(app);
  quire::bench::add_bench(app, command_line(argc, argv));
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();  // of a command that has said what there is to say
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadUsage;  // --help and --version come this way too
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const quire::BadModel& error) {
    std::cerr << "quire: " << error.what() << '\n';
    return kBadUsage;
  } catch (const std::exception& error) {
    std::cerr << "quire: " << error.what() << '\n';
    return kFailed;
  }
}
