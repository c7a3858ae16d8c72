// A program with one command of each kind, for tests of what is made of a command line.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace quire {

struct TestProgram {
  TestProgram() {
    app.require_subcommand(1);
    app.footer("QUIRE_MODEL  the model's path");
    CLI::App* serve = app.add_subcommand("serve", "serve a model's answers");
    serve->add_option("-t,--threads", threads, "0: all cores")->capture_default_str()->check(CLI::Range(0, 1024));
    serve->add_option("--kind", kind, "of the values")->check(CLI::IsMember({"bf16", "f32"}));
    serve->add_option("--port", port, "to listen on");
    serve->add_option("--seconds", seconds, "-- until it ends")->check(CLI::PositiveNumber);
    CLI::Option* as_json = serve->add_flag("--json", json, "print JSON");
    serve->add_flag("--plain", plain, "print text")->excludes(as_json);
    serve->add_flag("--pretty", pretty, "with line ends")->needs(as_json);
    CLI::App* bench = app.add_subcommand("bench", "measure");
    bench->require_subcommand(1);
    bench->add_subcommand("matmul", "products")->add_option("FILE", file, ".a file's name")->required();
    bench->add_subcommand("serving", "a server")
        ->add_option("SIZE", size, "of the load")
        ->check(CLI::IsMember({"small", "large"}));
  }

  CLI::App app{"a program", "quire"};
  int threads = 0;
  double seconds = 1;
  uint16_t port = 0;
  std::string kind, file, size;
  bool json = false, plain = false, pretty = false;
};

}  // namespace quire
