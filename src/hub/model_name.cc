#include "hub/model_name.h"

#include <algorithm>

#include "base/in_quotes.h"

namespace quire::hub {
namespace {

constexpr size_t kLongestPart = 96;  // of ORG and of NAME, as the hub has it

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

// "--" stands for the slash in the cache's folders.
bool is_part(std::string_view part) {
  const auto allowed = [](char c) { return is_letter_or_digit(c) || c == '.' || c == '-' || c == '_'; };
  const auto border = [](char c) { return c != '.' && c != '-'; };
  return !part.empty() && part.size() <= kLongestPart && std::all_of(part.begin(), part.end(), allowed) &&
         border(part.front()) && border(part.back()) && part.find("--") == part.npos && part.find("..") == part.npos;
}

bool is_repository(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != text.npos && is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1)) &&
         !text.ends_with(".gguf") && !text.ends_with(".safetensors");
}

// Takes what follows the mark away from the text; none: the mark is not in it.
std::optional<std::string_view> cut_after(std::string_view& text, char mark) {
  const size_t place = text.find(mark);
  if (place == text.npos) return std::nullopt;
  const std::string_view rest = text.substr(place + 1);
  text = text.substr(0, place);
  return rest;
}

}  // namespace

bool is_plain_path(std::string_view path) {
  if (path.size() > 1000 || in_quotes_if_odd(path, path.size()) != path) return false;
  while (true) {
    const std::string_view segment = path.substr(0, path.find('/'));
    if (segment.empty() || segment == "." || segment == "..") return false;
    if (segment.size() == path.size()) return true;
    path.remove_prefix(segment.size() + 1);
  }
}

bool is_commit(std::string_view text) {
  const auto hexadecimal = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == 40 && std::all_of(text.begin(), text.end(), hexadecimal);
}

std::optional<ModelName> parse_model_name(std::string_view text) {
  ModelName name;
  if (const auto file = cut_after(text, ':')) {
    if (!is_plain_path(*file)) return std::nullopt;
    name.file = *file;
  }
  if (const auto revision = cut_after(text, '@')) {
    if (!is_plain_path(*revision)) return std::nullopt;
    name.revision = *revision;
  }
  if (!is_repository(text)) return std::nullopt;
  name.repository = text;
  return name;
}

std::string to_string(const ModelName& name) {
  std::string text = name.repository;
  if (!name.revision.empty()) text += "@" + name.revision;
  if (!name.file.empty()) text += ":" + name.file;
  return text;
}

}  // namespace quire::hub
