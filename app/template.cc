#include "template.h"

#include <CLI/CLI.hpp>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/check.h"
#include "one_line_errors.h"
#include "text/chat_template.h"
#include "text/vocabulary.h"

namespace quire {
namespace {

struct TemplateOptions {
  std::string model;
  std::string file;
  std::string context;
  std::string now;
};

std::string read_all(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    check(file.is_open(), "cannot open ", path);
  }
  std::istream& input = path == "-" ? std::cin : file;
  return {std::istreambuf_iterator<char>(input), {}};
}

std::string template_source(const TemplateOptions& options) {
  if (!options.file.empty()) return read_all(options.file);
  const auto source = text::vocabulary_from_path(options.model).chat_template;
  check(source.has_value(), options.model, " has no chat template");
  return *source;
}

// 2025-07-04T09:08:07, with its weekday and day of the year worked out.
std::optional<std::tm> parse_time(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::tm time{};
  const char* end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  check(end && *end == 0, "--now needs a time like 2025-07-04T09:08:07, not ", text);
  time.tm_isdst = -1;
  std::mktime(&time);
  return time;
}

void print_rendered(const TemplateOptions& options) {
  const text::ChatTemplate chat_template(template_source(options));
  const auto context = nlohmann::ordered_json::parse(read_all(options.context));
  std::cout << chat_template.render(context, {}, parse_time(options.now)) << std::flush;
}

}  // namespace

void add_template(CLI::App& app) {
  auto options = std::make_shared<TemplateOptions>();
  CLI::App* command = app.add_subcommand("template", "What a chat template makes of a conversation");
  auto* source = command->add_option_group("source")->require_option(1);
  source->add_option("--model", options->model, "A GGUF file, or a folder with tokenizer.json");
  source->add_option("--template", options->file, "A file with the template itself");
  command->add_option("--context", options->context, "What it is rendered with, as JSON; \"-\" is standard input")
      ->required();
  command->add_option("--now", options->now,
                      "The time for strftime_now, such as 2025-07-04T09:08:07; else the clock's");
  command->callback([options] {
    const int code = with_one_line_errors("template", [&] { print_rendered(*options); });
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace quire
