#include "grammar/ebnf.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/refused.h"
#include "base/utf8.h"
#include "grammar/source_reader.h"

namespace quire::grammar {
namespace {

bool is_space(char32_t code) { return code == U' ' || code == U'\t' || code == U'\n' || code == U'\r'; }

bool begins_name(char32_t code) {
  return code == U'_' || code == U'-' || code == U'.' || (code >= U'a' && code <= U'z') ||
         (code >= U'A' && code <= U'Z');
}

bool continues_name(char32_t code) { return begins_name(code) || (code >= U'0' && code <= U'9'); }

class EbnfReader {
 public:
  EbnfReader(std::string_view source, int most_depth) : in_("the grammar", source, most_depth) { id_of("root"); }

  Rules read() {
    for (skip_space(); !in_.at_end(); skip_space()) read_rule();
    for (const auto& [name, id] : ids_) {
      check_input(defined_[id], "the grammar: there is no rule \"", name, "\"");
    }
    return std::move(rules_);
  }

 private:
  RuleId id_of(const std::string& name) {
    const auto [place, is_new] = ids_.try_emplace(name, static_cast<RuleId>(rules_.rules.size()));
    if (is_new) {
      rules_.add();
      defined_.push_back(false);
    }
    return place->second;
  }

  void skip_space() {
    while (!in_.at_end()) {
      if (in_.peek() == U'#') {
        while (!in_.at_end() && in_.peek() != U'\n') in_.take();
      } else if (is_space(in_.peek())) {
        in_.take();
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    if (!begins_name(in_.peek())) in_.fail("a rule's name is expected");
    std::string name;
    while (continues_name(in_.peek())) append_utf8(name, in_.take());
    return name;
  }

  void read_rule() {
    const std::string name = read_name();
    skip_space();
    if (!in_.take_if(U"::=")) in_.fail("::= is expected");
    const RuleId id = id_of(name);
    if (defined_[id]) in_.fail("the rule \"", name, "\" is there twice,");
    defined_[id] = true;
    Expression body = read_alternatives();
    rules_[id].body = std::move(body);
  }

  Expression read_alternatives() {
    std::vector<Expression> alternatives;
    do {
      alternatives.push_back(read_sequence());
    } while (in_.take_if(U'|'));
    return choice(std::move(alternatives));
  }

  Expression read_sequence() {
    std::vector<Expression> parts;
    for (skip_space(); begins_part(); skip_space()) parts.push_back(read_counted());
    if (parts.empty() && in_.peek() != U')') in_.fail("a text, a class, a group or a rule is expected");
    return sequence(std::move(parts));
  }

  bool begins_part() {
    const char32_t code = in_.peek();
    if (code == U'"' || code == U'[' || code == U'(') return true;
    return begins_name(code) && !begins_rule();
  }

  // A name that ::= follows is the next rule's.
  bool begins_rule() {
    const size_t here = in_.place();
    read_name();
    skip_space();
    const bool begins = in_.looking_at(U"::=");
    in_.return_to(here);
    return begins;
  }

  Expression read_counted() {
    Expression part = read_part();
    if (in_.take_if(U'*')) return repeat(std::move(part), 0);
    if (in_.take_if(U'+')) return repeat(std::move(part), 1);
    if (in_.take_if(U'?')) return repeat(std::move(part), 0, 1);
    if (!in_.take_if(U'{')) return part;
    skip_space();
    const int32_t least = in_.take_number("a count");
    int32_t most = least;
    skip_space();
    if (in_.take_if(U',')) {
      skip_space();
      most = in_.peek() == U'}' ? kUnlimited : in_.take_number("a count");
      skip_space();
    }
    if (!in_.take_if(U'}')) in_.fail("} is expected");
    if (most != kUnlimited && most < least) in_.fail("the count {", least, ",", most, "} is empty");
    return repeat(std::move(part), least, most);
  }

  Expression read_part() {
    if (in_.take_if(U'"')) return read_text();
    if (in_.take_if(U'[')) return set_of(read_class());
    if (in_.take_if(U'(')) return read_group();
    const std::string name = read_name();
    if (in_.peek() == U'(') in_.fail("\"", name, "(\" is no group: macros are not supported,");
    return refer(id_of(name));
  }

  Expression read_group() {
    if (in_.peek() == U'=') in_.fail("lookahead is not supported,");
    in_.enter();
    Expression group = read_alternatives();
    if (!in_.take_if(U')')) in_.fail(") is expected");
    in_.leave();
    return group;
  }

  Expression read_text() {
    std::string bytes;
    while (!in_.take_if(U'"')) {
      if (in_.peek() == U'\n' || in_.peek() == U'\r') in_.fail("a text is not closed");
      append_utf8(bytes, read_character());
    }
    return text(bytes);
  }

  CodeSet read_class() {
    const bool negated = in_.take_if(U'^');
    std::vector<CodeRange> ranges;
    while (!in_.take_if(U']')) {
      const char32_t first = read_character();
      char32_t last = first;
      if (in_.peek() == U'-' && in_.peek(1) != U']') {
        in_.take();
        last = read_character();
      }
      if (last < first) in_.fail("a range in a class ends before it begins");
      ranges.push_back({first, last});
    }
    return negated ? all_but(code_set(std::move(ranges))) : code_set(std::move(ranges));
  }

  char32_t read_character() {
    const char32_t code = in_.take();
    return code == U'\\' ? read_escape() : in_.take_character(code);
  }

  char32_t read_escape() {
    const char32_t code = in_.take();
    if (const std::optional<char32_t> usual = in_.take_usual_escape(code)) return *usual;
    switch (code) {
      case U'b':
        return U'\b';
      case U'a':
        return U'\a';
      case U'e':
        return 0x1B;
      case U'u':
        return in_.take_hexadecimal(4);
      case U'U':
        return in_.take_hexadecimal(8);
      default:
        break;
    }
    if (continues_name(code) && code != U'_' && code != U'-' && code != U'.') {
      in_.fail("the escape \\", utf8(code), " is not supported,");
    }
    return in_.take_character(code);
  }

  SourceReader in_;
  Rules rules_;
  std::map<std::string, RuleId> ids_;
  std::vector<bool> defined_;  // [rules]
};

}  // namespace

Rules read_ebnf(std::string_view source, int most_depth) { return EbnfReader(source, most_depth).read(); }

}  // namespace quire::grammar
