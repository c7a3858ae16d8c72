// `quire template`: what a chat template makes of a conversation, for people who debug prompts.
//
//   quire template [FILE|-] [--now TIME]                         the template of a model
//   quire template --chat-template FILE [FILE|-] [--now TIME]    one in a file of its own
//
// The file is a JSON array of messages, or an object with all that the template reads: messages, tools,
// add_generation_prompt, bos_token and so on. The rendered text is printed as it is, without a line end of its own.
//
// The exit code is 2 when the template, the context or the rendering is bad.
#include <CLI/CLI.hpp>
#include <ctime>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/check.h"
#include "commands.h"
#include "model_path.h"
#include "one_line_errors.h"
#include "read_input.h"
#include "session.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

struct TemplateOptions {
  std::string model;
  std::string file;
  std::string context = "-";
  std::string now;
};

// A template, and what it is rendered with where messages alone are given: they are to be answered.
struct Source {
  std::string text;
  nlohmann::ordered_json defaults = {{"add_generation_prompt", true}};
};

Source source_of(const TemplateOptions& options) {
  if (!options.file.empty()) return {read_file(options.file, "template")};
  const std::string path = model_path(options.model);
  const text::Tokenizer tokenizer(text::vocabulary_from_path(path));
  const text::Vocabulary& vocabulary = tokenizer.vocabulary();
  check(vocabulary.chat_template.has_value(), path, " has no chat template");
  Source source{*vocabulary.chat_template};
  if (vocabulary.bos) source.defaults["bos_token"] = tokenizer.piece(*vocabulary.bos);
  if (vocabulary.eos) source.defaults["eos_token"] = tokenizer.piece(*vocabulary.eos);
  return source;
}

nlohmann::ordered_json read_context(const std::string& path, nlohmann::ordered_json defaults) {
  auto given = nlohmann::ordered_json::parse(read_input(path));
  if (!given.is_array()) return given;
  defaults["messages"] = std::move(given);
  return defaults;
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
  const Source source = source_of(options);
  const text::ChatTemplate chat_template(source.text);
  const nlohmann::ordered_json context = read_context(options.context, source.defaults);
  std::cout << chat_template.render(context, {}, parse_time(options.now)) << std::flush;
}

}  // namespace

void add_template(CLI::App& app) {
  auto options = std::make_shared<TemplateOptions>();
  CLI::App* command = app.add_subcommand("template", "what a chat template makes of a conversation");
  CLI::Option* model = add_model_option(*command, options->model);
  command->add_option("--chat-template", options->file, "a file with a template instead of the model's own")
      ->excludes(model);
  command
      ->add_option("--context,FILE", options->context,
                   "messages as JSON, or an object with all that the template reads; -: standard input")
      ->capture_default_str();
  command->add_option("--now", options->now,
                      "the time for strftime_now, such as 2025-07-04T09:08:07; default: the clock's");
  command->callback([options] {
    const int code = with_one_line_errors("template", [&] { print_rendered(*options); });
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace quire
