// Hostile templates and contexts: every limit is named when it is passed, and no source whatever harms the process.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "jinja/strings.h"
#include "jinja/template.h"

namespace quire::jinja {
namespace {

using nlohmann::ordered_json;

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

std::string refusal_within(const std::string& source, const ordered_json& context = ordered_json::object(),
                           const Limits& limits = {}) {
  try {
    Template(source, limits).render(context, limits);
    return "";
  } catch (const CheckError& error) {
    return error.what();
  }
}

void expect_limit(const std::string& source, const std::string& limit, const Limits& limits = {}) {
  const std::string error = refusal_within(source, ordered_json::object(), limits);
  EXPECT_NE(error.find("(limit: " + limit + ")"), std::string::npos) << source.substr(0, 80) << "\n" << error;
}

TEST(TemplateLimits, Source) {
  expect_limit(std::string(101, 'x'), "source_bytes", {.source_bytes = 100});
  EXPECT_EQ(refusal_within(std::string(100, 'x'), ordered_json::object(), {.source_bytes = 100}), "");
}

TEST(TemplateLimits, NestingOfTheSource) {
  constexpr int kMany = 60'000;
  const std::pair<const char*, const char*> nested[] = {
      {"(", ")"},       {"[", "]"}, {"{1:", "}"}, {"x[", "]"},      {"x(", ")"},   {"x|f(", ")"},
      {"x is f(", ")"}, {"-", ""},  {"not ", ""}, {"{'a':[", "]}"}, {"1 if ", ""}, {"1 if 1 else ", ""}};
  for (const auto& [open, close] : nested)
    expect_limit("{{ " + repeated(open, kMany) + "1" + repeated(close, kMany) + " }}", "syntax_depth");
  expect_limit(repeated("{% if x %}", kMany), "syntax_depth");
  expect_limit(repeated("{% for x in y %}", kMany), "syntax_depth");
  expect_limit("{% set " + repeated("(", kMany) + "x" + repeated(")", kMany) + " = 1 %}", "syntax_depth");
}

TEST(TemplateLimits, BracketsWithoutEnd) {
  EXPECT_EQ(refusal_within("{{ " + repeated("(", 60'000)), "chat template, line 1: a tag that begins here has no end");
}

TEST(TemplateLimits, ChainsOfOperators) {
  for (const char* link : {" + 1", " * 1", " or 1", " and 1", ".x", "[0]", "()", "|string", " if 1 else 1"})
    expect_limit("{{ 1" + repeated(link, 20'000) + " }}", "syntax_depth");
  EXPECT_EQ(refusal_within("{{ 1" + repeated(" ~ 1", 1000) + " }}"), "");
  EXPECT_EQ(refusal_within("{{ 1" + repeated(" + 1", 150) + " }}"), "");
}

TEST(TemplateLimits, Steps) {
  expect_limit(
      "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor "
      "%}",
      "steps", {.steps = 1'000'000});
  const std::string many = "{% set x = 'a' * 1000000 %}{% for a in range(100000) %}";
  expect_limit(many + "{{ x == x ~ '' }}{% endfor %}", "steps", {.steps = 1'000'000});
  expect_limit(many + "{{ 'b' in x }}{% endfor %}", "steps", {.steps = 1'000'000});
  expect_limit(many + "{{ x.strip('b')|length }}{% endfor %}", "steps", {.steps = 1'000'000});
}

// What walks costs steps, however few nodes of the template ask for it.
TEST(TemplateLimits, WorkOnLongTextsTakesSteps) {
  const std::string many =
      "{% set ns = namespace() %}{% set x = 'a' * 100000 %}{% set blank = ' ' * 100000 %}{% for i in range(50) %}";
  for (const char* work : {"blank|trim", "blank|int", "blank|float", "''|trim(x)", "''.strip(x)", "x.startswith(x)",
                           "x.endswith((x,))", "x.removeprefix(x)", "x.removesuffix(x)", "''.rfind(x)", "''.rsplit(x)",
                           "''|replace('b', x)", "[]|join(x)", "1|tojson(separators=(x, x))", "1|tojson(indent=x)",
                           "1|tojson(indent=100000)", "''|indent(100000)", "[1][[x]]", "ns[x]"})
    expect_limit(many + "{% set y = " + work + " %}{% endfor %}", "steps", {.steps = 30'000});
}

TEST(TemplateLimits, WorkOnManyEntriesTakesSteps) {
  ordered_json entries;
  std::string names, parameters, given;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "name" + std::to_string(i);
    entries[name] = i;
    names += "{% set " + name + " = 1 %}";
    parameters += name + ",";
    given += name + "=1,";
  }
  const std::string many = "{% for i in range(100) %}", end = "{% endfor %}";
  const std::string sources[] = {many + "{{ d|first }}" + end,
                                 many + "{% set y = dict(d) %}" + end,
                                 names + many + repeated("{{ name999 }}", 10) + end,
                                 "{% set x = '{name999}' * 1000 %}{{ x.format(" + given + ") }}",
                                 "{% macro m(" + parameters + ") %}{% endmacro %}{{ m(" + given + ") }}",
                                 "{% set ns = namespace() %}{% set ns.a = ns %}{% set p = 'a.' * 1000 ~ 'a' %}" + many +
                                     "{% set y = [ns]|map(attribute=p)|list %}" + end};
  for (const std::string& source : sources) {
    const std::string error = refusal_within(source, {{"d", entries}}, {.steps = 50'000});
    EXPECT_NE(error.find("(limit: steps)"), std::string::npos) << source.substr(0, 80) << "\n" << error;
  }
}

TEST(TemplateLimits, AMissingKeyIsCutBeforeItIsShown) {
  EXPECT_EQ(refusal_within("{{ [1]['\\x01' * 8000000] }}"), "");
  EXPECT_EQ(refusal_within("{{ [1]['a' * 100] + 1 }}"),
            "chat template, line 1: a list has no element '" + std::string(59, 'a') + "...");
}

TEST(TemplateLimits, ASharedTupleIsAKeyAtOnce) {
  const std::string doubled =
      "{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{% set d = {ns.t: 1} %}";
  EXPECT_EQ(refusal_within("{% set ns = namespace(t=(1,)) %}" + doubled), "");
  EXPECT_EQ(refusal_within("{% set ns = namespace(t=([],)) %}" + doubled),
            "chat template, line 1: a tuple cannot be a key of a dict");
}

TEST(TemplateLimits, PiecesOfATextAreNotCutPastTheLimit) {
  const Limits limits{.value_items = 100};
  for (const char* cut : {"split('\\n')", "rsplit('\\n')", "split()", "splitlines()"}) {
    expect_limit(cat("{{ ('a\\n' * 100 ~ 'a').", cut, " }}"), "value_items", limits);
    EXPECT_EQ(refusal_within(cat("{{ ('a\\n' * 99 ~ 'a').", cut, " }}"), ordered_json::object(), limits), "");
  }
  EXPECT_EQ(split_lines("a\nb\r\n\nc\n", 2), (std::vector<std::string_view>{"a", "b", "\nc\n"}));
  EXPECT_EQ(split_lines("a\nb\r\n\nc\n", 9), (std::vector<std::string_view>{"a", "b", "", "c"}));
}

// The condition is walked by the loop that it asks.
TEST(TemplateLimits, ALoopIsNotAskedByItsOwnCondition) {
  const std::string before =
      "{% set ns = namespace(l=none) %}{% macro m() %}{{ ns.l.length }}{% endmacro %}"
      "{% for x in ['a' * 100, 'b' * 100, 'c' * 100, 'd' * 100] if (";
  const std::string after = " if ns.l else true) %}{% set ns.l = loop %}{{ x }}{% endfor %}";
  for (const char* asks : {"ns.l.length", "ns.l.revindex", "ns.l.revindex0", "ns.l.last", "ns.l.nextitem", "m()",
                           "[ns.l]|map(attribute='length')|list", "[ns.l]|sort(attribute='length')"})
    EXPECT_EQ(refusal_within(before + asks + after), "chat template, line 1: a loop is asked by its own condition")
        << asks;
  EXPECT_EQ(refusal_within(before + "ns.l.index" + after), "");
  EXPECT_EQ(Template("{% for a in [1, 2] %}{% for b in [3, 4] if loop.length == 2 and loop.index != b %}"
                     "{{ loop.length }}{% endfor %}{% endfor %}")
                .render(ordered_json::object()),
            "2222");
}

TEST(TemplateLimits, Recursion) {
  expect_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "evaluation_depth");
  expect_limit(
      "{% macro m(n) %}{% if n %}{% for a in [1] %}{{ m([n]|length) }}{% endfor %}{% endif %}{% endmacro %}{{ m(1) }}",
      "evaluation_depth");
  expect_limit("{% macro m() %}{{ caller }}{% call m() %}{% endcall %}{% endmacro %}{% call m() %}{% endcall %}",
               "evaluation_depth");
  expect_limit("{% macro m(a=m()) %}{% endmacro %}{{ m() }}", "evaluation_depth");
}

TEST(TemplateLimits, SizesOfValues) {
  expect_limit("{{ 'a' * 1000000000 }}", "value_bytes");
  expect_limit("{{ 1000000000000 * 1000000000000 * 'ab' }}", "value_bytes");
  expect_limit("{{ [1] * 1000000000 }}", "value_items");
  expect_limit("{{ ('x' * 16777216) * 1099511627776 }}", "value_bytes");  // 2 to the 64th
  expect_limit("{% set x = 'a' * 10000000 %}{{ '{}{}'.format(x, x) }}", "value_bytes");
  expect_limit("{% set x = 'a' * 10000000 %}{{ '%s%s' % (x, x) }}", "value_bytes");
  expect_limit("{{ 'a'|indent(1000000000000) }}", "value_bytes");
  expect_limit("{{ [1]|tojson(indent=1000000000000) }}", "value_bytes");
  expect_limit("{% set x = 'a' * 10000000 %}{{ x ~ x }}", "value_bytes");
  expect_limit("{% set x = 'a' * 1000000 %}{{ x.replace('a', x) }}", "value_bytes");
  expect_limit("{% set x = 'a' * 1000000 %}{{ ([x] * 20)|join(x) }}", "value_bytes");
  expect_limit("{% set x = 'a' * 1000000 %}{{ ([x] * 20)|tojson }}", "value_bytes");
  expect_limit("{% set x = 'a' * 1000000 %}{{ ([x] * 20)|string }}", "value_bytes");
  expect_limit("{% set x = 'a' * 10000000 %}{{ x|list }}", "value_items");
  EXPECT_EQ(refusal_within("{{ range(1000000000000) }}"), "chat template, line 1: range: more than 100000 numbers");
}

TEST(TemplateLimits, DepthOfValues) {
  expect_limit("{% set ns = namespace(x=[]) %}{% for a in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
               "value_depth");
  expect_limit("{% set ns = namespace(x={}) %}{% for a in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
               "value_depth");
  const std::string error =
      refusal_within("{{ deep }}", ordered_json::parse("{\"deep\":" + repeated("[", 5000) + repeated("]", 5000) + "}"));
  EXPECT_NE(error.find("(limit: value_depth)"), std::string::npos) << error;
}

TEST(TemplateLimits, MemoryOfAllValues) {
  const Limits limits{.memory_bytes = 8 << 20};
  const std::string many = "{% set ns = namespace(x=[]) %}{% for a in range(1000) %}";
  expect_limit(many + "{% set ns.x = ns.x + ['a' * 100000] %}{% endfor %}", "memory_bytes", limits);
  expect_limit(many + "{% set ns.x = namespace(before=ns.x, own='a' * 100000) %}{% endfor %}", "memory_bytes", limits);
  expect_limit("{% macro m() %}{{ 'a' * 1000000 }}{{ m() }}{% endmacro %}{{ m() }}", "memory_bytes", limits);
  // Parts that wait for the rest.
  const std::string numbers = repeated("1, ", 10'000);
  for (const std::string& waits : {std::string("x ~ m()"), "[" + numbers + "m()]", "m(" + numbers + "m())"})
    expect_limit("{% set x = 'a' * 1000000 %}{% macro m() %}{{ " + waits + " }}{% endmacro %}{{ m() }}", "memory_bytes",
                 limits);
}

TEST(TemplateLimits, WhatIsGoneIsNotCounted) {
  EXPECT_EQ(
      refusal_within(
          "{% set ns = namespace(s='') %}{% for a in range(3000) %}{% set ns.s = ns.s ~ ('a' * 100) %}{% endfor %}",
          ordered_json::object(), {.memory_bytes = 4 << 20}),
      "");
}

TEST(TemplateLimits, Output) {
  expect_limit("{% set x = 'a' * 1000000 %}{% for a in range(100) %}{{ x }}{% endfor %}", "output_bytes");
  expect_limit("abc", "output_bytes", {.output_bytes = 2});
}

TEST(TemplateLimits, NamespacesMayReferToEachOther) {
  EXPECT_EQ(refusal_within("{% set a = namespace() %}{% set a.self = a %}{{ a.self.self.self == a }}"), "");
  EXPECT_EQ(
      refusal_within(
          "{% set ns = namespace(x=none) %}{% for a in range(100000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}"),
      "");
  EXPECT_EQ(refusal_within("{% for a in [1] %}{% macro m() %}{% endmacro %}{% set b = namespace(m=m) %}{% endfor %}"),
            "");
}

TEST(TemplateLimits, TheContextMustBeAnObject) {
  EXPECT_EQ(refusal_within("x", ordered_json::array()), "chat template: the context: it must be an object");
}

// Sources that templates are made of, joined and damaged at random. Whatever comes out must render or be refused.
class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string next() {
    std::string source;
    for (int i = pick(8) + 1; i > 0; --i) source += kParts[static_cast<size_t>(pick(static_cast<int>(kParts.size())))];
    for (int i = pick(6); i > 0 && !source.empty(); --i) damage(source);
    return source;
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  void damage(std::string& source) {
    const size_t at = static_cast<size_t>(pick(static_cast<int>(source.size())));
    switch (pick(4)) {
      case 0:
        source[at] = static_cast<char>(pick(256));
        break;
      case 1:
        source.erase(at, static_cast<size_t>(pick(4)));
        break;
      case 2:
        source.insert(at, kParts[static_cast<size_t>(pick(static_cast<int>(kParts.size())))]);
        break;
      default:
        source.insert(at, source.substr(at / 2, static_cast<size_t>(pick(20))));
        break;
    }
  }

  static inline const std::vector<std::string> kParts = {"{% for m in messages %}",
                                                         "{% endfor %}",
                                                         "{{ m.content }}",
                                                         "{{ m['role'] | upper }}",
                                                         "{%- if loop.first -%}",
                                                         "{% elif x %}",
                                                         "{% else %}",
                                                         "{% endif %}",
                                                         "{% set ns = namespace(a=1) %}",
                                                         "{% set ns.a = ns.a + 1 %}",
                                                         "{% macro f(a, b=2) %}",
                                                         "{% endmacro %}",
                                                         "{{ f(1) }}",
                                                         "{{ f(*[1], b=2) }}",
                                                         "{% call f() %}",
                                                         "{% endcall %}",
                                                         "{% raw %}",
                                                         "{% endraw %}",
                                                         "{# comment #}",
                                                         "{{ messages | map(attribute='content') | join('\\n') }}",
                                                         "{{ messages[-1:0:-2] | tojson(indent=2) }}",
                                                         "{{ 'a' * 3 ~ 1 // 2 % 4 }}",
                                                         "{{ '%s|%d' % (1, 2) }}",
                                                         "{{ '{} {0} {x}'.format(messages, x=1) }}",
                                                         "{% break %}",
                                                         "{% continue %}",
                                                         "{% filter trim %}",
                                                         "{% endfilter %}",
                                                         "{% set a = 1 %}",
                                                         "{% set x %}",
                                                         "{% endset %}",
                                                         "{{ x is not defined and y in z or not w }}",
                                                         "{{ messages|unique(attribute='role')|list }}",
                                                         "{{ loop.last or loop.nextitem }}",
                                                         "{{ 'x'.split('y', 1)[0].strip('z').replace('', 'q') }}",
                                                         "{{ range(3)|reverse|list }}",
                                                         "{{ \"\\u00e9\\x41\\n\" }}",
                                                         "{{ messages|sort(attribute='role')|first }}",
                                                         "{{ 1 if x else 2 }}",
                                                         " text\n",
                                                         "{% generation %}",
                                                         "{% endgeneration %}",
                                                         "{{ (1, 2.5e3, none, true) < (1,) }}",
                                                         "{{ strftime_now('%Y') }}",
                                                         "{{ messages|length|string|int|float }}"};

  std::mt19937 random_;
};

TEST(TemplateRobustness, DamagedSourcesRenderOrAreRefused) {
  const ordered_json context = {
      {"messages", {{{"role", "user"}, {"content", "hi \xc3\xa9"}}, {{"role", "assistant"}, {"content", nullptr}}}}};
  const Limits limits{.steps = 20'000,
                      .value_bytes = 1 << 16,
                      .value_items = 1 << 12,
                      .memory_bytes = 1 << 20,
                      .output_bytes = 1 << 16};
  Mutator mutator(20250704);
  int rendered = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string source = mutator.next();
    try {
      Template(source, limits).render(context, limits);
      ++rendered;
    } catch (const CheckError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("chat template")) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(rendered, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace quire::jinja
