#include "grammar/rules.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/refused.h"

namespace quire::grammar {
namespace {

// The one character that an expression matches, if it is that simple.
bool is_one_character(const Expression& expression) {
  if (expression.kind == Expression::Kind::set) return true;
  if (expression.kind != Expression::Kind::text || expression.text.empty()) return false;
  const auto follows = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; };
  return std::all_of(expression.text.begin() + 1, expression.text.end(), follows);
}

void add_ranges(const Expression& one_character, std::vector<CodeRange>& ranges) {
  if (one_character.kind == Expression::Kind::set) {
    ranges.insert(ranges.end(), one_character.set.begin(), one_character.set.end());
  } else {
    const char32_t code = code_points(one_character.text).front();
    ranges.push_back({code, code});
  }
}

void append_part(std::vector<Expression>& flat, Expression part) {
  if (part.kind == Expression::Kind::sequence) {
    for (Expression& inner : part.parts) append_part(flat, std::move(inner));
  } else if (part.kind == Expression::Kind::text && !flat.empty() && flat.back().kind == Expression::Kind::text) {
    flat.back().text += part.text;
  } else if (!part.is_empty_text()) {
    flat.push_back(std::move(part));
  }
}

template <class Visit>
void for_each_reference(const Expression& expression, const Visit& visit) {
  if (expression.kind == Expression::Kind::rule) visit(expression.rule);
  for (const Expression& part : expression.parts) for_each_reference(part, visit);
}

// Which rules match some text, found from those that need no other.
class LiveRules {
 public:
  explicit LiveRules(const Rules& rules) : rules_(rules), live_(rules.rules.size(), false), users_(rules.rules.size()) {
    const auto count = static_cast<RuleId>(rules.rules.size());
    for (RuleId id = 0; id < count; ++id) {
      for_each_reference(rules[id].body, [&](RuleId used) {
        if (users_[used].empty() || users_[used].back() != id) users_[used].push_back(id);
      });
    }
    for (RuleId id = 0; id < count; ++id) visit(id);
    while (!found_.empty()) {
      const RuleId id = found_.back();
      found_.pop_back();
      for (const RuleId user : users_[id]) visit(user);
    }
  }

  bool matches(const Expression& expression) const {
    const auto part_matches = [&](const Expression& part) { return matches(part); };
    switch (expression.kind) {
      case Expression::Kind::text:
        return true;
      case Expression::Kind::set:
        return !expression.set.empty();
      case Expression::Kind::rule:
        return live_[expression.rule];
      case Expression::Kind::sequence:
        return std::all_of(expression.parts.begin(), expression.parts.end(), part_matches);
      case Expression::Kind::choice:
        return std::any_of(expression.parts.begin(), expression.parts.end(), part_matches);
      case Expression::Kind::repeat:
        return expression.least == 0 || matches(expression.parts.front());
    }
    return false;
  }

 private:
  void visit(RuleId id) {
    if (live_[id] || !matches(rules_[id].body)) return;
    live_[id] = true;
    found_.push_back(id);
  }

  const Rules& rules_;
  std::vector<bool> live_;                  // [rules]
  std::vector<std::vector<RuleId>> users_;  // [rules] the rules that refer to it
  std::vector<RuleId> found_;               // live, and their users not told yet
};

// Of an expression that matches some text.
Expression without_dead_ends(const Expression& expression, const LiveRules& live) {
  if (expression.kind == Expression::Kind::repeat) {
    const Expression& part = expression.parts.front();
    if (!live.matches(part)) return text("");
    return repeat(without_dead_ends(part, live), expression.least, expression.most);
  }
  if (expression.kind != Expression::Kind::sequence && expression.kind != Expression::Kind::choice) return expression;
  std::vector<Expression> parts;
  for (const Expression& part : expression.parts) {
    if (live.matches(part)) parts.push_back(without_dead_ends(part, live));
  }
  return expression.kind == Expression::Kind::sequence ? sequence(std::move(parts)) : choice(std::move(parts));
}

}  // namespace

// xgrammar copies texts and sets that are repeated up to about this many times; other parts become rules of their own.
static constexpr int64_t kMostCopies = 256;
static constexpr int64_t kPlacesOfPart = 4;  // of anything but text, which is cheap

int64_t places(const Expression& expression) {
  int64_t count = kPlacesOfPart;
  if (expression.kind == Expression::Kind::text) count = std::ssize(expression.text);
  if (expression.kind == Expression::Kind::set) count += std::ssize(expression.set);
  for (const Expression& part : expression.parts) count += places(part);
  if (expression.kind == Expression::Kind::repeat) {
    const int64_t times = std::min<int64_t>(kMostCopies, std::max(expression.least, expression.most));
    const Expression& part = expression.parts.front();
    const bool copied = part.kind == Expression::Kind::text || part.kind == Expression::Kind::set;
    count += times * (copied ? places(part) : kPlacesOfPart);
  }
  return count;
}

Expression text(std::string_view bytes) { return {.kind = Expression::Kind::text, .text = std::string(bytes)}; }
Expression set_of(CodeSet set) { return {.kind = Expression::Kind::set, .set = std::move(set)}; }
Expression refer(RuleId rule) { return {.kind = Expression::Kind::rule, .rule = rule}; }

Expression sequence(std::vector<Expression> parts) {
  std::vector<Expression> flat;
  flat.reserve(parts.size());
  for (Expression& part : parts) append_part(flat, std::move(part));
  if (flat.empty()) return text("");
  if (flat.size() == 1) return std::move(flat.front());
  return {.kind = Expression::Kind::sequence, .parts = std::move(flat)};
}

Expression choice(std::vector<Expression> parts) {
  std::vector<Expression> others;
  std::vector<CodeRange> ranges;
  size_t single = 0;
  for (Expression& part : parts) {
    if (is_one_character(part)) {
      add_ranges(part, ranges);
      ++single;
    } else if (part.kind == Expression::Kind::choice) {
      for (Expression& inner : part.parts) others.push_back(std::move(inner));
    } else {
      others.push_back(std::move(part));
    }
  }
  if (single > 0) others.insert(others.begin(), set_of(code_set(std::move(ranges))));
  if (others.size() == 1) return std::move(others.front());
  return {.kind = Expression::Kind::choice, .parts = std::move(others)};
}

Expression repeat(Expression part, int32_t least, int32_t most) {
  if (most == 0 || part.is_empty_text()) return text("");
  if (least == 1 && most == 1) return part;
  Expression repeated{.kind = Expression::Kind::repeat, .least = least, .most = most};
  repeated.parts.push_back(std::move(part));
  return repeated;
}

RuleId Rules::add(Expression body) {
  rules.push_back({.body = std::move(body)});
  return static_cast<RuleId>(rules.size() - 1);
}

void remove_dead_ends(Rules& rules) {
  const LiveRules live(rules);
  check_input(live.matches(refer(0)), "it matches no text");
  std::vector<Expression> bodies;
  bodies.reserve(rules.rules.size());
  for (const Rule& rule : rules.rules) {
    bodies.push_back(live.matches(rule.body) ? without_dead_ends(rule.body, live) : nothing());
  }
  for (size_t id = 0; id < bodies.size(); ++id) rules.rules[id].body = std::move(bodies[id]);
}

int64_t places(const Rules& rules) {
  std::vector<bool> seen(rules.rules.size(), false);
  std::vector<RuleId> pending = {0};
  seen[0] = true;
  int64_t count = 0;
  while (!pending.empty()) {
    const Expression& body = rules[pending.back()].body;
    pending.pop_back();
    count += kPlacesOfPart + places(body);
    for_each_reference(body, [&](RuleId used) {
      if (!seen[used]) pending.push_back(used);
      seen[used] = true;
    });
  }
  return count;
}

}  // namespace quire::grammar
