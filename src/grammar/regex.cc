#include "grammar/regex.h"

#include <optional>
#include <utility>
#include <vector>

#include "grammar/source_reader.h"

namespace quire::grammar {
namespace {

const CodeSet kDigits = {{U'0', U'9'}};
const CodeSet kWordParts = {{U'0', U'9'}, {U'A', U'Z'}, {U'_', U'_'}, {U'a', U'z'}};
const CodeSet kWhiteSpace = {{U'\t', U'\r'}, {U' ', U' '}};
const CodeSet kLineEnds = {{U'\n', U'\n'}, {U'\r', U'\r'}, {0x2028, 0x2029}};

// \d and the like; none for an escape that stands for one character.
std::optional<CodeSet> named_class(char32_t name) {
  switch (name) {
    case U'd':
      return kDigits;
    case U'D':
      return all_but(kDigits);
    case U'w':
      return kWordParts;
    case U'W':
      return all_but(kWordParts);
    case U's':
      return kWhiteSpace;
    case U'S':
      return all_but(kWhiteSpace);
    default:
      return std::nullopt;
  }
}

class RegexReader {
 public:
  RegexReader(std::string_view source, int most_depth) : in_("the regular expression", source, most_depth) {}

  Expression read() {
    Expression whole = read_alternatives(true);
    if (!in_.at_end()) in_.fail("a group was closed that was not opened");
    return whole;
  }

 private:
  Expression read_alternatives(bool outermost) {
    std::vector<Expression> alternatives;
    do {
      alternatives.push_back(read_sequence(outermost));
    } while (in_.take_if(U'|'));
    return choice(std::move(alternatives));
  }

  bool at_alternative_end() const { return in_.at_end() || in_.peek() == U'|' || in_.peek() == U')'; }

  Expression read_sequence(bool outermost) {
    std::vector<Expression> parts;
    if (outermost) in_.take_if(U'^');
    while (!at_alternative_end()) {
      if (outermost && in_.take_if(U'$')) {
        if (!at_alternative_end()) in_.fail("$ is supported only where an alternative ends");
        break;
      }
      parts.push_back(read_counted());
    }
    return sequence(std::move(parts));
  }

  Expression read_counted() {
    Expression part = read_part();
    const std::optional<std::pair<int32_t, int32_t>> count = read_count();
    if (!count) return part;
    in_.take_if(U'?');  // lazy: another way to search, the same texts
    if (in_.peek() == U'+') in_.fail("possessive counts are not supported,");
    if (read_count()) in_.fail("there is nothing to repeat before the count");
    return repeat(std::move(part), count->first, count->second);
  }

  std::optional<std::pair<int32_t, int32_t>> read_count() {
    if (in_.take_if(U'*')) return std::pair{0, kUnlimited};
    if (in_.take_if(U'+')) return std::pair{1, kUnlimited};
    if (in_.take_if(U'?')) return std::pair{0, 1};
    if (in_.peek() == U'{' && is_count_in_braces()) return read_count_in_braces();
    return std::nullopt;
  }

  // A brace that begins no count stands for itself.
  bool is_count_in_braces() {
    size_t ahead = 1;
    const auto skip_digits = [&] {
      const size_t begin = ahead;
      while (in_.peek(ahead) >= U'0' && in_.peek(ahead) <= U'9') ++ahead;
      return ahead > begin;
    };
    if (!skip_digits()) return false;
    if (in_.peek(ahead) == U',') {
      ++ahead;
      skip_digits();
    }
    return in_.peek(ahead) == U'}';
  }

  std::pair<int32_t, int32_t> read_count_in_braces() {
    in_.take();
    const int32_t least = in_.take_number("a count");
    int32_t most = least;
    if (in_.take_if(U',')) most = in_.peek() == U'}' ? kUnlimited : in_.take_number("a count");
    in_.take();
    if (most != kUnlimited && most < least) in_.fail("the count {", least, ",", most, "} is empty");
    return {least, most};
  }

  Expression read_part() {
    const char32_t code = in_.take();
    switch (code) {
      case U'(':
        return read_group();
      case U'[':
        return set_of(read_class());
      case U'.':
        return set_of(all_but(kLineEnds));
      case U'\\':
        return read_escape();
      case U'*':
      case U'+':
      case U'?':
        in_.fail("there is nothing to repeat before the count");
      case U'^':
        in_.fail("^ is supported only where an alternative begins");
      case U'$':
        in_.fail("$ is supported only where an alternative ends");
      default:
        return text(utf8(in_.take_character(code)));
    }
  }

  Expression read_group() {
    in_.enter();
    if (in_.take_if(U'?')) read_group_kind();
    Expression group = read_alternatives(false);
    if (!in_.take_if(U')')) in_.fail("a group is not closed");
    in_.leave();
    return group;
  }

  void read_group_kind() {
    if (in_.take_if(U':')) return;
    in_.take_if(U'P');
    const bool named = in_.take_if(U'<') && in_.peek() != U'=' && in_.peek() != U'!';
    if (!named) in_.fail("assertions and flags are not supported,");
    while (in_.take() != U'>') {
    }
  }

  Expression read_escape() {
    const char32_t code = in_.take();
    if (const std::optional<CodeSet> named = named_class(code)) return set_of(*named);
    if (code == U'b' || code == U'B') in_.fail("\\b and \\B are not supported,");
    return text(utf8(escaped_character(code)));
  }

  // What the letter or sign after a backslash stands for.
  char32_t escaped_character(char32_t code) {
    if (const std::optional<char32_t> usual = in_.take_usual_escape(code)) return *usual;
    if (code == U'u') return read_unicode_escape();
    const bool has_meaning =
        (code >= U'0' && code <= U'9') || (code >= U'a' && code <= U'z') || (code >= U'A' && code <= U'Z');
    if (has_meaning) in_.fail("the escape \\", utf8(code), " is not supported,");
    return in_.take_character(code);
  }

  char32_t read_unicode_escape() {
    if (!in_.take_if(U'{')) return in_.take_hexadecimal(4);
    int digits = 0;
    while (in_.peek(digits) != U'}' && digits < 6) ++digits;
    const char32_t code = in_.take_hexadecimal(digits);
    if (!in_.take_if(U'}')) in_.fail("a code point is not closed");
    return code;
  }

  CodeSet read_class() {
    const bool negated = in_.take_if(U'^');
    if (in_.peek() == U']') in_.fail("a class is empty");
    std::vector<CodeRange> ranges;
    while (!in_.take_if(U']')) read_class_part(ranges);
    return negated ? all_but(code_set(std::move(ranges))) : code_set(std::move(ranges));
  }

  void read_class_part(std::vector<CodeRange>& ranges) {
    char32_t first = in_.take();
    if (first == U'\\') {
      const char32_t escaped = in_.take();
      if (const std::optional<CodeSet> named = named_class(escaped)) {
        ranges.insert(ranges.end(), named->begin(), named->end());
        return;
      }
      first = escaped == U'b' ? U'\b' : escaped_character(escaped);
    }
    char32_t last = first;
    if (in_.peek() == U'-' && in_.peek(1) != U']' && in_.peek(1) != U'\0') {
      in_.take();
      last = read_range_end();
    }
    if (last < first) in_.fail("a range in a class ends before it begins");
    ranges.push_back({first, last});
  }

  char32_t read_range_end() {
    const char32_t code = in_.take();
    if (code != U'\\') return code;
    const char32_t escaped = in_.take();
    if (named_class(escaped)) in_.fail("a range in a class ends in a class");
    return escaped == U'b' ? U'\b' : escaped_character(escaped);
  }

  SourceReader in_;
};

}  // namespace

Expression read_regex(std::string_view source, int most_depth) { return RegexReader(source, most_depth).read(); }

}  // namespace quire::grammar
