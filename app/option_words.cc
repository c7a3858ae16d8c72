#include "option_words.h"

#include <CLI/CLI.hpp>
#include <string_view>

#include "base/check.h"

namespace quire {
namespace {

// The type and the descriptions of the checks, as in "INT:INT in [1 - 64]" and "TEXT:{a,b}".
std::string described(const CLI::Option& option) { return option.get_type_name(); }

std::string_view between(std::string_view text, std::string_view open, char close) {
  const size_t begin = text.find(open);
  const size_t end = begin == text.npos ? begin : text.find(close, begin);
  return end == text.npos ? std::string_view() : text.substr(begin + open.size(), end - begin - open.size());
}

}  // namespace

bool takes_value(const CLI::Option& option) { return option.get_expected_max() > 0 && option.get_type_size() != 0; }

std::string value_name(const CLI::Option& option) {
  if (!takes_value(option)) return "";
  const std::string type = described(option);
  if (type.starts_with("INT") || type.starts_with("UINT")) return "N";
  return type.starts_with("FLOAT") ? "X" : "TEXT";
}

std::string kind_of_value(const CLI::Option& option) {
  const std::string type = described(option);
  if (type.starts_with("UINT")) return "a whole number that is not negative";
  if (type.starts_with("INT")) return "a whole number";
  return type.starts_with("FLOAT") ? "a number" : "a text";
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string text = described(option);
  const std::string_view set = between(text, "{", '}');
  std::vector<std::string> choices;
  for (size_t begin = 0; begin < set.size();) {
    const size_t end = std::min(set.find(',', begin), set.size());
    choices.emplace_back(set.substr(begin, end - begin));
    begin = end + 1;
  }
  return choices;
}

std::string allowed_by(const CLI::Option& option) {
  std::string words;
  for (const std::string& choice : choices_of(option)) words += cat(words.empty() ? "one of " : ", ", choice);
  if (!words.empty()) return words;
  const std::string text = described(option);
  const std::string_view range = between(text, " in [", ']');
  if (const size_t dash = range.find(" - "); dash != range.npos)
    return cat("from ", range.substr(0, dash), " to ", range.substr(dash + 3));
  return text.ends_with("POSITIVE") ? "above 0" : "";
}

}  // namespace quire
