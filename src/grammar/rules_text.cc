#include "grammar/rules_text.h"

#include <cstdio>
#include <vector>

#include "base/check.h"

namespace quire::grammar {
namespace {

bool is_letter_or_digit(char32_t code) {
  return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || (code >= '0' && code <= '9');
}

// Everything but letters and digits is escaped: no character has a meaning of its own then.
void write_code(std::string& out, char32_t code) {
  if (is_letter_or_digit(code)) {
    out += static_cast<char>(code);
    return;
  }
  char escaped[16];
  std::snprintf(escaped, sizeof(escaped), code < 0x10000 ? "\\u%04x" : "\\U%08x", static_cast<unsigned>(code));
  out += escaped;
}

void write_text(std::string& out, const std::string& text) {
  out += '"';
  for (const char32_t code : code_points(text)) write_code(out, code);
  out += '"';
}

void write_set(std::string& out, const CodeSet& set) {
  out += '[';
  for (const CodeRange& range : set) {
    write_code(out, range.first);
    if (range.last == range.first) continue;
    out += '-';
    write_code(out, range.last);
  }
  out += ']';
}

std::string name(RuleId id) { return id == 0 ? "root" : cat("r", id); }

class Writer {
 public:
  explicit Writer(const Rules& rules) : rules_(rules), wanted_(rules.rules.size(), false) { want(0); }

  std::string write() {
    while (!pending_.empty()) {
      const RuleId id = pending_.back();
      pending_.pop_back();
      write_rule(id);
    }
    return std::move(out_);
  }

 private:
  void want(RuleId id) {
    if (wanted_[id]) return;
    wanted_[id] = true;
    pending_.push_back(id);
  }

  void write_rule(RuleId id) {
    const Rule& rule = rules_[id];
    out_ += name(id);
    if (rule.most_characters != kUnlimited) out_ += cat("[max_chars=", rule.most_characters, "]");
    out_ += " ::= ";
    write_bare(rule.body);
    if (!rule.ahead.is_empty_text()) {
      out_ += " (= ";
      write_bare(rule.ahead);
      out_ += ")";
    }
    out_ += '\n';
  }

  void write_bare(const Expression& expression) {
    if (expression.kind == Expression::Kind::sequence) return write_parts(expression, " ");
    if (expression.kind == Expression::Kind::choice) return write_parts(expression, " | ");
    write(expression);
  }

  void write(const Expression& expression) {
    switch (expression.kind) {
      case Expression::Kind::text:
        return write_text(out_, expression.text);
      case Expression::Kind::set:
        return write_set(out_, expression.set);
      case Expression::Kind::rule:
        want(expression.rule);
        out_ += name(expression.rule);
        return;
      case Expression::Kind::sequence:
      case Expression::Kind::choice:
        out_ += '(';
        write_bare(expression);
        out_ += ')';
        return;
      case Expression::Kind::repeat:
        return write_repeat(expression);
    }
  }

  void write_parts(const Expression& expression, const char* between) {
    const char* before = "";
    for (const Expression& part : expression.parts) {
      out_ += before;
      write(part);
      before = between;
    }
  }

  // A set that is repeated must stand bare: xgrammar has a fast way for it.
  void write_repeat(const Expression& expression) {
    const Expression& part = expression.parts.front();
    if (part.kind == Expression::Kind::repeat) out_ += '(';
    write(part);
    if (part.kind == Expression::Kind::repeat) out_ += ')';
    if (expression.least == 0 && expression.most == kUnlimited) {
      out_ += '*';
    } else if (expression.most == kUnlimited) {
      out_ += cat("{", expression.least, ",}");
    } else {
      out_ += cat("{", expression.least, ",", expression.most, "}");
    }
  }

  const Rules& rules_;
  std::vector<bool> wanted_;  // [rules] written or in pending_
  std::vector<RuleId> pending_;
  std::string out_;
};

}  // namespace

std::string rules_text(const Rules& rules) { return Writer(rules).write(); }

}  // namespace quire::grammar
