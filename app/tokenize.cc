// `quire tokenize`: text to token ids and back, line by line, for people and scripts that compare tokenizers.
//
//   quire tokenize [FILE|-] [--no-special] [--parse-special] [--json]
//   quire tokenize --detokenize [FILE|-] [--skip-special] [--json]
//
// Each line of text gives one line of ids. With --json a line of text is a JSON string, so that it can hold line breaks
// and anything else, and ids are a JSON array; without, a line is itself and ids have spaces between them.
//
// The exit code is 2 when the model or a line of the input is bad.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"
#include "commands.h"
#include "model_path.h"
#include "one_line_errors.h"
#include "read_input.h"
#include "session.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

using nlohmann::json;
using text::Tokenizer;

struct TokenizeOptions {
  std::string model;
  std::string lines = "-";
  bool detokenize = false;
  bool no_special = false;
  bool parse_special = false;
  bool skip_special = false;
  bool json = false;
};

int32_t to_id(int64_t number) {
  check(number == static_cast<int32_t>(number), number, " is no token id");
  return static_cast<int32_t>(number);
}

std::vector<int32_t> parse_ids(const std::string& line, bool as_json) {
  std::vector<int32_t> ids;
  if (as_json) {
    for (const int64_t number : json::parse(line).get<std::vector<int64_t>>()) ids.push_back(to_id(number));
    return ids;
  }
  std::istringstream words(line);
  for (int64_t number; words >> number;) ids.push_back(to_id(number));
  check(words.eof(), in_quotes(line), " is not a list of token ids");
  return ids;
}

std::string show_ids(const std::vector<int32_t>& ids, bool as_json) {
  if (as_json) return json(ids).dump();
  std::string shown;
  for (const int32_t id : ids) shown += (shown.empty() ? "" : " ") + std::to_string(id);
  return shown;
}

std::string answer(const Tokenizer& tokenizer, const std::string& line, const TokenizeOptions& options) {
  if (options.detokenize) {
    const std::string text = tokenizer.decode(parse_ids(line, options.json), options.skip_special);
    return options.json ? json(text).dump(-1, ' ', true) : text;  // ASCII: no reader sees a line end inside
  }
  const std::string text = options.json ? json::parse(line).get<std::string>() : line;
  return show_ids(tokenizer.encode(text, {.add_special = !options.no_special, .parse_special = options.parse_special}),
                  options.json);
}

void tokenize_lines(const Tokenizer& tokenizer, std::istream& lines, const TokenizeOptions& options) {
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    try {
      std::cout << answer(tokenizer, line, options) << '\n';
    } catch (const std::exception& error) {
      throw CheckError(cat("line ", number, ": ", in_plain_words(error)));
    }
  }
}

void tokenize(const TokenizeOptions& options) {
  std::istringstream file(options.lines == "-" ? "" : read_file(options.lines));
  const Tokenizer tokenizer(text::vocabulary_from_path(model_path(options.model)));
  tokenize_lines(tokenizer, options.lines == "-" ? std::cin : file, options);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "text to token ids and back, line by line");
  add_model_option(*command, options->model);
  command->add_option("--lines,FILE", options->lines, "the input; -: standard input")->capture_default_str();
  command->add_flag("--json", options->json, "lines are JSON: strings of text, arrays of ids");
  auto* detokenize = command->add_flag("--detokenize", options->detokenize, "ids to text");
  command->add_flag("--no-special", options->no_special, "without the tokens that the model wants around a text")
      ->excludes(detokenize);
  command->add_flag("--parse-special", options->parse_special, "special tokens spelled out in the text count as such")
      ->excludes(detokenize);
  command->add_flag("--skip-special", options->skip_special, "leave special tokens out of the text")->needs(detokenize);
  command->callback([options] {
    const int code = with_one_line_errors("tokenize", [&] { tokenize(*options); });
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace quire
