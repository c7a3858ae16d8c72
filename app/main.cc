#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "base/check.h"
#include "commands.h"
#include "exit_status.h"
#include "help.h"
#include "one_line_errors.h"
#include "shell_completion.h"
#include "usage_error.h"

namespace {

// The command as a person would repeat it: without the folder that the program happens to lie in.
std::string command_line(int argc, char** argv) {
  std::string command = std::filesystem::path(argv[0]).filename();
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return command;
}

void add_commands(CLI::App& program, const std::string& command) {
  quire::set_look_of_help(program);
  program.require_subcommand(1);
  quire::add_serve(program);
  quire::add_chat(program);
  quire::add_generate(program);
  quire::add_models(program);
  quire::add_tokenize(program);
  quire::add_template(program);
  quire::add_inspect(program);
  quire::bench::add_bench(program, command);
  quire::add_completion(program);
  quire::add_help(program);
  program.footer(  // of the program alone: commands take over what is there before them
      "Environment:\n"
      "  QUIRE_MODEL     the model of commands that are given none\n"
      "  QUIRE_CACHE     where ./run puts the model it fetches; default: quire in the user's cache folder\n"
      "  QUIRE_API_KEY   a key that callers of `quire serve` must present\n"
      "  QUIRE_ADMIN_API_KEY\n"
      "                  a key for what concerns all its callers, as --admin-api-key\n"
      "  HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT\n"
      "                  where models are fetched by name, as Hugging Face's own programs read them");
}

// What is opened later must not become one of the three descriptors that everybody writes to.
void fill_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor)
    if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", O_RDWR) != descriptor) std::abort();
}

bool all_is_written() {
  std::cout.flush();
  return std::cout.good() && std::fflush(stdout) == 0 && !std::ferror(stdout);
}

int run(int argc, char** argv) {
  CLI::App program{"an LLM serving engine", "quire"};
  add_commands(program, command_line(argc, argv));
  try {
    program.parse(argc, argv);
    return 0;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();  // of a command that has said what there is to say
  } catch (const CLI::Success& wish) {
    return program.exit(wish);  // --help and --version
  } catch (const CLI::ParseError& error) {
    std::cerr << quire::explain_usage(program, error);
  } catch (const quire::UsageError& error) {
    std::cerr << quire::explain_usage(program, error);
  }
  return quire::kBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  return quire::exit_status([&] {
    const int status = run(argc, argv);
    quire::check(status != 0 || all_is_written(), "the output cannot be written");
    return status;
  });
}
