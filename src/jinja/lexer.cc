#include "jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/utf8.h"
#include "jinja/strings.h"

namespace quire::jinja {
namespace {

// Longer ones first.
constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                         "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};

std::string with_plain_newlines(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool before_newline = i + 1 < source.size() && source[i + 1] == '\n';
    if (source[i] != '\r')
      result += source[i];
    else if (!before_newline)
      result += '\n';
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_ascii_digit(c) || c == '_' || (c & 0x80);
}

size_t digits_at(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(std::min(at, text.size()));
  return static_cast<size_t>(std::find_if_not(rest.begin(), rest.end(), is_ascii_digit) - rest.begin());
}

size_t spaces_at(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  return rest.size() - strip(rest, Side::left).size();
}

// Where the next tag begins.
size_t next_tag(std::string_view text) {
  for (size_t at = text.find('{'); at != text.npos; at = text.find('{', at + 1))
    if (at + 1 < text.size() && (text[at + 1] == '{' || text[at + 1] == '%' || text[at + 1] == '#')) return at;
  return text.npos;
}

// A string literal's text, from between the quotes. What is no escape stays as it is.
std::string resolve_escapes(std::string_view literal, int line) {
  static constexpr std::string_view kLetters = "abfnrtv\\'\"\n", kMeanings = "\a\b\f\n\r\t\v\\'\"";
  std::string result;
  for (size_t at = 0; at < literal.size(); ++at) {
    const char c = literal[at] == '\\' && at + 1 < literal.size() ? literal[++at] : char{0};
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 0) {
      result += literal[at];
    } else if (const size_t letter = kLetters.find(c); letter != kLetters.npos) {
      result += kMeanings.substr(letter, 1);  // a newline means nothing
    } else if (digits > 0) {
      const std::string_view hex = literal.substr(at + 1, digits);
      uint32_t code = 0;
      const auto read = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
      if (hex.size() < digits || read.ptr != hex.data() + digits)
        fail_at(line, "an escape in a string needs ", digits, " hexadecimal digits");
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        fail_at(line, "an escape in a string names no character");
      append_utf8(result, code);
      at += digits;
    } else if (c == 'N' || is_ascii_digit(c)) {
      fail_at(line, "the escape '\\", std::string(1, c), "' in a string is not supported");
    } else {
      result.append(1, '\\').append(1, c);
    }
  }
  return result;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_newlines(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) lex_outside();
    add(Token::end, "");
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text)}); }
  void add_data(std::string_view data) {
    if (!data.empty()) add(Token::data, data);
  }
  std::string_view take(size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    line_ += static_cast<int>(std::count(taken.begin(), taken.end(), '\n'));
    at_line_start_ = taken.ends_with('\n');
    rest_.remove_prefix(bytes);
    return taken;
  }
  bool sign_at(size_t at) const { return at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+'); }

  std::string_view trimmed_before_tag(std::string_view data, char sign, bool is_print) const {
    if (sign == '-') return strip(data, Side::right);
    if (sign == '+' || is_print) return data;
    const size_t line = data.rfind('\n') + 1;  // 0 when there is none
    const bool from_line_start = line > 0 || at_line_start_;
    return from_line_start && strip(data.substr(line), Side::left).empty() ? data.substr(0, line) : data;
  }

  // How many bytes the end of a tag at `at` has, with what its sign or trim_blocks takes after it; 0 when none is
  // there.
  size_t end_of_tag(std::string_view close, size_t at) const {
    const std::string_view text = rest_.substr(at);
    const bool is_print = close == "}}";
    if (text.starts_with('-') && text.substr(1).starts_with(close)) {
      const size_t bytes = 1 + close.size();
      return bytes + spaces_at(text, bytes);
    }
    if (!is_print && text.starts_with('+') && text.substr(1).starts_with(close)) return 1 + close.size();
    if (!text.starts_with(close)) return 0;
    const bool newline = !is_print && text.substr(close.size()).starts_with('\n');
    return close.size() + (newline ? 1 : 0);
  }

  // The bytes of `{% raw %}` or `{% endraw %}` at `at`. The newline after the first stays, being part of the raw text.
  std::optional<size_t> raw_tag(std::string_view name, size_t at, bool ends_trimmed) const {
    const std::string_view text = rest_;
    size_t i = std::min(at + (sign_at(at + 2) ? 3 : 2), text.size());
    i += spaces_at(text, i);
    if (!text.substr(i).starts_with(name)) return std::nullopt;
    i += name.size();
    i += spaces_at(text, i);
    if (!ends_trimmed && text.substr(i).starts_with("%}")) return i + 2 - at;
    if (!ends_trimmed && text.substr(i).starts_with('+')) return std::nullopt;
    const size_t end = end_of_tag("%}", i);
    return end == 0 ? std::nullopt : std::optional(i + end - at);
  }

  void lex_outside() {
    const size_t tag = next_tag(rest_);
    if (tag == rest_.npos) return add_data(take(rest_.size()));
    const char kind = rest_[tag + 1];
    const char sign = tag + 2 < rest_.size() ? rest_[tag + 2] : ' ';
    const auto raw = kind == '%' ? raw_tag("raw", tag, false) : std::nullopt;
    add_data(trimmed_before_tag(rest_.substr(0, tag), sign, kind == '{'));
    take(tag);
    if (raw) return lex_raw(*raw);
    if (kind == '#') return lex_comment();
    if (kind == '{') return lex_tag("}}", Token::print_begin, Token::print_end);
    lex_tag("%}", Token::block_begin, Token::block_end);
  }

  void lex_comment() {
    const size_t body = sign_at(2) ? 3 : 2;
    const size_t close = find(rest_, "#}", body);
    if (close == kNowhere) fail_at(line_, "missing end of comment tag");
    const size_t end = close > body && sign_at(close - 1) ? close - 1 : close;
    take(end + end_of_tag("#}", end));
  }

  void lex_raw(size_t tag_bytes) {
    const int begun = line_;
    take(tag_bytes);
    for (size_t at = find(rest_, "{%"); at != kNowhere; at = find(rest_, "{%", at + 1)) {
      const auto end = raw_tag("endraw", at, true);
      if (!end) continue;
      add_data(trimmed_before_tag(rest_.substr(0, at), rest_[at + 2], false));
      take(at + *end);
      return;
    }
    fail_at(begun, "missing end of raw block");
  }

  void lex_tag(std::string_view close, Token::Kind begin, Token::Kind end) {
    const int begun = line_;
    add(begin, "");
    take(sign_at(2) ? 3 : 2);
    brackets_.clear();
    while (!rest_.empty()) {
      const size_t bytes = brackets_.empty() ? end_of_tag(close, 0) : 0;
      if (bytes > 0) {
        add(end, "");
        take(bytes);
        return;
      }
      lex_token();
    }
    fail_at(begun, "a tag that begins here has no end");
  }

  void lex_token() {
    const char first = rest_[0];
    if (const size_t spaces = spaces_at(rest_, 0)) {
      take(spaces);
    } else if (is_ascii_digit(first)) {
      lex_number();
    } else if (is_name_byte(first)) {
      const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_name_byte);
      add(Token::name, rest_.substr(0, end - rest_.begin()));
      take(end - rest_.begin());
    } else if (first == '\'' || first == '"') {
      lex_string();
    } else {
      lex_symbol();
    }
  }

  // Decimal. After a dot a fraction is none: `x.0.1` takes two subscripts.
  void lex_number() {
    const size_t whole = digits_at(rest_, 0);
    size_t end = whole;
    if (!tokens_.back().is_symbol(".")) {
      if (const size_t digits = rest_.substr(end).starts_with('.') ? digits_at(rest_, end + 1) : 0) end += 1 + digits;
      if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
        const size_t sign = sign_at(end + 1) ? 1 : 0;
        if (const size_t digits = digits_at(rest_, end + 1 + sign)) end += 1 + sign + digits;
      }
    }
    const std::string_view text = rest_.substr(0, end);
    double real = 0;
    uint64_t integer = 0;
    const auto read = end > whole ? std::from_chars(text.data(), text.data() + end, real)
                                  : std::from_chars(text.data(), text.data() + end, integer);
    if (read.ec != std::errc()) fail_at(line_, "the number ", text, " is out of range");
    if (end > whole)
      tokens_.push_back({Token::real, line_, "", Value::real(real)});
    else
      tokens_.push_back({Token::integer, line_, "", Value::integer(static_cast<Integer>(integer))});
    take(end);
  }

  void lex_string() {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != rest_[0]) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail_at(line_, "a string that begins here has no end");
    add(Token::string, resolve_escapes(rest_.substr(1, end - 1), line_));
    take(end + 1);
  }

  void lex_symbol() {
    const auto* symbol = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                      [&](std::string_view candidate) { return rest_.starts_with(candidate); });
    if (symbol == std::end(kSymbols))
      fail_at(line_, "unexpected character '", rest_.substr(0, code_point_at(rest_, 0).bytes), "'");
    balance(*symbol);
    add(Token::symbol, *symbol);
    take(symbol->size());
  }

  // While a bracket is open, what looks like the end of the tag is not.
  void balance(std::string_view symbol) {
    static constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (const size_t open = kOpen.find(symbol); open != kOpen.npos) brackets_ += kClose[open];
    if (kClose.find(symbol) == kClose.npos) return;
    if (brackets_.empty() || brackets_.back() != symbol[0]) fail_at(line_, "unexpected '", symbol, "'");
    brackets_.pop_back();
  }

  std::string source_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  std::string brackets_;  // those still open in the tag
  int line_ = 1;
  bool at_line_start_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace quire::jinja
