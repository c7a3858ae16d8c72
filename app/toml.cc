#include "toml.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/utf8.h"

namespace quire {
namespace {

bool is_bare(char letter) { return std::isalnum(static_cast<unsigned char>(letter)) || letter == '-' || letter == '_'; }
bool is_word(char letter) { return is_bare(letter) || letter == '.' || letter == '+'; }

bool is_digit(char letter) { return std::isdigit(static_cast<unsigned char>(letter)); }

// Digits with underscores between them, a fraction, an exponent.
bool is_number(std::string_view word) {
  if (word.starts_with('+') || word.starts_with('-')) word.remove_prefix(1);
  if (word.empty() || !is_digit(word[0])) return false;
  for (size_t at = word.find('_'); at != word.npos; at = word.find('_', at + 1))
    if (at + 1 == word.size() || !is_digit(word[at - 1]) || !is_digit(word[at + 1])) return false;
  double value = 0;
  std::string digits(word);
  std::erase(digits, '_');
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error != std::errc::invalid_argument && end == digits.data() + digits.size();
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::vector<TomlEntry> read() {
    std::vector<TomlEntry> entries;
    for (skip_empty(); at_ < text_.size(); skip_empty()) {
      entries.push_back(read_entry());
      for (size_t i = 0; i + 1 < entries.size(); ++i)
        demand(entries[i].key != entries.back().key, in_quotes(entries.back().key), " is set twice, on line ",
               entries[i].line, " too");
    }
    return entries;
  }

 private:
  template <class... Parts>
  void demand(bool holds, const Parts&... parts) const {
    check(holds, "line ", line_, ": ", parts...);
  }

  char next() const { return at_ < text_.size() ? text_[at_] : '\n'; }

  char take() {
    const char letter = next();
    ++at_;
    return letter;
  }

  void skip_blanks() {
    while (next() == ' ' || next() == '\t' || next() == '\r') ++at_;
    if (next() == '#')
      while (next() != '\n') ++at_;
  }

  void skip_empty() {
    for (skip_blanks(); at_ < text_.size() && next() == '\n'; skip_blanks()) {
      ++at_;
      ++line_;
    }
  }

  TomlEntry read_entry() {
    demand(next() != '[', "tables are not used here: each line is an option = its value");
    TomlEntry entry{.line = line_, .key = read_key(), .values = {}};
    skip_blanks();
    demand(next() == '=', "after ", in_quotes(entry.key), " comes = and its value");
    ++at_;
    skip_blanks();
    if (next() == '[')
      entry.values = read_array();
    else
      entry.values.push_back(read_value());
    skip_blanks();
    demand(next() == '\n', "there is more than one value after ", in_quotes(entry.key));
    return entry;
  }

  std::string read_key() {
    if (next() == '"' || next() == '\'') return read_text();
    const size_t begin = at_;
    while (is_bare(next())) ++at_;
    demand(at_ > begin, "the name of an option is wanted");
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string read_value() {
    if (next() == '"' || next() == '\'') return read_text();
    const size_t begin = at_;
    while (is_word(next())) ++at_;
    std::string word(text_.substr(begin, at_ - begin));
    const bool known = word == "true" || word == "false" || is_number(word);
    demand(known, "a value is a text in quotes, a number, true, false or an array of these");
    std::erase(word, '_');
    return word;
  }

  char next_in_array() {
    skip_empty();
    demand(at_ < text_.size(), "the array does not end");
    return next();
  }

  std::vector<std::string> read_array() {
    ++at_;
    std::vector<std::string> values;
    while (next_in_array() != ']') {
      values.push_back(read_value());
      demand(next_in_array() == ',' || next() == ']', "in an array, commas are between the values");
      if (next() == ',') ++at_;
    }
    ++at_;
    return values;
  }

  std::string read_text() {
    const char quote = take();
    std::string value;
    while (next() != quote) {
      demand(next() != '\n', "the text does not end on its line");
      const char letter = take();
      value += letter == '\\' && quote == '"' ? read_escape() : std::string(1, letter);
    }
    ++at_;
    return value;
  }

  std::string read_escape() {
    constexpr std::string_view kLetters = "btnfr\"\\", kMeant = "\b\t\n\f\r\"\\";
    const char letter = take();
    if (const size_t known = kLetters.find(letter); known != kLetters.npos) return std::string(1, kMeant[known]);
    const size_t digits = letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    const std::string_view hex = text_.substr(std::min(at_, text_.size()), digits);
    uint32_t code = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    demand(digits > 0 && hex.size() == digits && error == std::errc() && end == hex.data() + digits,
           in_quotes(cat("\\", std::string(1, letter))), " is no escape of TOML");
    at_ += digits;
    std::string bytes;
    append_utf8(bytes, static_cast<char32_t>(code));
    return bytes;
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<TomlEntry> read_toml(std::string_view text) { return Reader(text).read(); }

}  // namespace quire
