// What templates mean, feature by feature. The expected texts are those of Jinja2 set up as for chat templates; whole
// templates of models are compared in tests/end_to_end/test_chat_template.py.
#include "jinja/template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"

namespace quire::jinja {
namespace {

using nlohmann::ordered_json;

const ordered_json& world() {
  static const ordered_json kWorld = ordered_json::parse(R"({
    "s": "Hello World", "u": "Straße 日本 x", "e": "", "n": null, "t": true, "f": false, "i": 7, "x": 2.5,
    "big": 18446744073709551615, "l": [3, 1, 2], "names": ["b", "a", "C", "c"],
    "d": {"b": 1, "a": 2, "C": {"z": [1, null, true]}},
    "rows": [{"n": "x", "v": 1}, {"n": "y", "v": 2}, {"n": "X", "v": 3}, {"v": 4}],
    "html": "<a href='x'>&", "lines": "a\n\nb\n", "shadow": {"items": 5, "pop": 6, "x": 7}
  })");
  return kWorld;
}

std::string rendered(const std::string& source) { return Template(source).render(world()); }
std::string value(const std::string& expression) { return rendered("{{ " + expression + " }}"); }

// The error of making or rendering; empty when there is none.
std::string refusal(const std::string& source) {
  try {
    rendered(source);
    return "";
  } catch (const CheckError& error) {
    return error.what();
  }
}

struct Pair {
  const char* source;
  const char* expected;
};

void expect_values(const std::vector<Pair>& pairs) {
  for (const auto& [source, expected] : pairs) EXPECT_EQ(value(source), expected) << source;
}
void expect_rendered(const std::vector<Pair>& pairs) {
  for (const auto& [source, expected] : pairs) EXPECT_EQ(rendered(source), expected) << source;
}
void expect_refused(const std::vector<Pair>& pairs) {
  for (const auto& [source, expected] : pairs) EXPECT_EQ(refusal(source), expected) << source;
}

TEST(Template, PrintsValuesAsPythonDoes) {
  expect_values(
      {{"n", "None"},
       {"t", "True"},
       {"undefined_name", ""},
       {"big", "18446744073709551615"},
       {"l", "[3, 1, 2]"},
       {"(1,)", "(1,)"},
       {"d", "{'b': 1, 'a': 2, 'C': {'z': [1, None, True]}}"},
       {"[1.0, 0.1, 1e16, 1e15, 1e-5, 123456789.125]", "[1.0, 0.1, 1e+16, 1000000000000000.0, 1e-05, 123456789.125]"},
       {R"(["it's", 'say "q"', '\'"', '\n\x01\u200d日'])", R"(["it's", 'say "q"', '\'"', '\n\x01\u200d日'])"},
       {"d.items()|list", "[('b', 1), ('a', 2), ('C', {'z': [1, None, True]})]"}});
}

TEST(Template, Arithmetic) {
  expect_values({{"1 + 2 * 3", "7"},
                 {"7 / 2", "3.5"},
                 {"-7 // 2", "-4"},
                 {"-7 % 3", "2"},
                 {"-5.5 % 2", "0.5"},
                 {"'ab' * 2", "abab"},
                 {"[1] + [2]", "[1, 2]"},
                 {"t + 1", "2"},
                 {"1 ~ 2 ~ n", "12None"},
                 {"big + 1", "18446744073709551616"}});
  expect_refused({{"{{ 1 / 0 }}", "chat template, line 1: division by zero"},
                  {"\n{{ s + 1 }}", "chat template, line 2: '+' does not work on str and int"},
                  {"{{ big * big }}", "chat template, line 1: an integer of more than 127 bits"}});
}

TEST(Template, ComparisonsAndLogic) {
  expect_values({{"1 < 2", "True"},
                 {"2 <= 1", "False"},
                 {"1 == 1.0", "True"},
                 {"'a' in 'cat'", "True"},
                 {"'a' not in d", "False"},
                 {"[1] == (1,)", "False"},
                 {"e or 'other'", "other"},
                 {"n and n.x", "None"},
                 {"not e", "True"},
                 {"1 if f", ""},
                 {"1 if f else 2 if f else 3", "3"},
                 {"nope == nope2", "True"}});
  EXPECT_EQ(refusal("{{ 1 < 'a' }}"), "chat template, line 1: a int and a str have no order");
}

TEST(Template, SubscriptsAndSlicesCountCodePoints) {
  expect_values({{"s[0]", "H"},
                 {"s[-1]", "d"},
                 {"s[99]", ""},
                 {"u[4]", "ß"},
                 {"u[::-1]", "x 本日 eßartS"},
                 {"u[7:9]", "日本"},
                 {"s[5:1:-1]", " oll"},
                 {"l[1:]", "[1, 2]"},
                 {"l[::-1]", "[2, 1, 3]"},
                 {"l.0", "3"},
                 {"d.C.z[1]", "None"},
                 {"d['zz']", ""},
                 {"u|length", "11"}});
  EXPECT_EQ(refusal("{{ d.zz.y }}"), "chat template, line 1: a dict has no attribute 'zz'");
  EXPECT_EQ(refusal("{{ n[0:1] }}"), "chat template, line 1: a NoneType cannot be sliced");
}

TEST(Template, AMethodHidesAnEntryOnlyAfterADot) {
  expect_values({{"shadow['items']", "5"},
                 {"shadow.x", "7"},
                 {"shadow.items is number", "False"},
                 {"shadow.pop is defined", "False"}});
}

TEST(Template, StringMethods) {
  expect_values({{"'  a '.strip() ~ '|'", "a|"},
                 {"s.strip('Hd')", "ello Worl"},
                 {"s.split('o', 1)", "['Hell', ' World']"},
                 {"'  a  b  c '.split(none, 1)", "['a', 'b  c ']"},
                 {"s.rsplit('o', 1)", "['Hello W', 'rld']"},
                 {"s.startswith(('x', 'He'))", "True"},
                 {"s.endswith('ld')", "True"},
                 {"s.replace('o', '0', 1)", "Hell0 World"},
                 {"'ab'.replace('', '-')", "-a-b-"},
                 {"u.find('本')", "8"},
                 {"'-'.join(names)", "b-a-C-c"},
                 {"u.upper()", "STRASSE 日本 X"},
                 {"'hello wOrld'.title()", "Hello World"}});
}

TEST(Template, Formats) {
  expect_values({{"'{} {} {{{0}}} {x} {x:d}'.format('a', l, x=1)", "a [3, 1, 2] {a} 1 1"},
                 {"'%s %d %s%%' % ('a', 42, l)", "a 42 [3, 1, 2]%"},
                 {"'%s' % d.a", "2"},
                 {"'%s-%s'|format(1, 'b')", "1-b"}});
  expect_refused({{"{{ '%s' % (1, 2) }}", "chat template, line 1: '%': not all arguments were used by the format"},
                  {"{{ '%s%s' % 1 }}", "chat template, line 1: '%': not enough arguments for the format"},
                  {"{{ '%d' % 'a' }}", "chat template, line 1: '%d' needs an integer, not str"},
                  {"{{ '{}'.format() }}", "chat template, line 1: format: there is no argument for '{}'"},
                  {"{{ '}'.format() }}", "chat template, line 1: format: a single '}'"}});
}

TEST(Template, ValuesCannotBeChangedOrEscapedFrom) {
  expect_refused(
      {{"{{ l.append(1) }}", "chat template, line 1: the method 'append' of a list is not supported in templates"},
       {"{{ d.update({}) }}", "chat template, line 1: the method 'update' of a dict is not supported in templates"},
       {"{% set d.x = 1 %}", "chat template, line 1: 'd' is no namespace: its attributes cannot be set"},
       {"{{ s.__class__.__mro__ }}", "chat template, line 1: a str has no attribute '__class__'"},
       {"{{ namespace(_x=1) }}",
        "chat template, line 1: a namespace's attribute must not begin with an underscore: '_x'"}});
  EXPECT_EQ(value("s.__class__"), "");
}

TEST(Template, TextFilters) {
  expect_values({{"' a '|trim", "a"},
                 {"'hello-big (world)'|title", "Hello-Big (World)"},
                 {"u|upper|lower", "strasse 日本 x"},
                 {"i|string ~ 1", "71"},
                 {"lines|indent(2)", "a\n\n  b\n"},
                 {"lines|indent('> ', true, true)", "> a\n> \n> b\n> "},
                 {"nope|default('D')", "D"},
                 {"e|d('D', true)", "D"}});
}

TEST(Template, MarkupEscapesWhatIsJoinedToIt) {
  expect_values({{"html + ('<'|safe)", "&lt;a href=&#39;x&#39;&gt;&amp;<"}, {"(html|safe) ~ '<'", "<a href='x'>&<"}});
}

TEST(Template, ToJson) {
  expect_values({{"d|tojson", R"({"b": 1, "a": 2, "C": {"z": [1, null, true]}})"},
                 {"d|tojson(sort_keys=true, separators=(',', ':'))", R"({"C":{"z":[1,null,true]},"a":2,"b":1})"},
                 {"{'a': [1, {}], 'b': []}|tojson(indent=2)", "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"},
                 {R"('"\\/\n\x01<日🙂'|tojson)", R"("\"\\/\n\u0001<日🙂")"},
                 {"'日🙂'|tojson(ensure_ascii=true)", R"("\u65e5\ud83d\ude42")"},
                 {"[1.0, 1e300, none, true, big]|tojson", "[1.0, 1e+300, null, true, 18446744073709551615]"},
                 {"{1: 2, none: 3, true: 4}|tojson", R"({"1": 4, "null": 3})"}});
  EXPECT_EQ(refusal("{{ nope|tojson }}"), "chat template, line 1: 'nope' is undefined");
}

TEST(Template, NumberFilters) {
  expect_values({{"' 42 '|int", "42"},
                 {"'4.7'|int", "4"},
                 {"'-9007199254740993'|int", "-9007199254740993"},
                 {"'z'|int(9)", "9"},
                 {"x|int", "2"},
                 {"'1e3'|float", "1000.0"},
                 {"'z'|float", "0.0"}});
}

TEST(Template, ListFilters) {
  expect_values({{"l|sort", "[1, 2, 3]"},
                 {"names|sort", "['a', 'b', 'C', 'c']"},
                 {"names|sort(case_sensitive=true, reverse=true)", "['c', 'b', 'a', 'C']"},
                 {"names|unique|list", "['b', 'a', 'C']"},
                 {"rows|map(attribute='n', default='-')|join(',')", "x,y,X,-"},
                 {"names|map('upper')|list", "['B', 'A', 'C', 'C']"},
                 {"rows|selectattr('n', 'equalto', 'y')|list", "[{'n': 'y', 'v': 2}]"},
                 {"rows|rejectattr('n')|list", "[{'v': 4}]"},
                 {"l|select('odd')|list", "[3, 1]"},
                 {"d|dictsort", "[('a', 2), ('b', 1), ('C', {'z': [1, None, True]})]"},
                 {"l|first ~ l|last ~ l|min ~ l|max", "3213"},
                 {"l|reverse|list", "[2, 1, 3]"},
                 {"s|reverse", "dlroW olleH"},
                 {"rows[:3]|sort(attribute='v', reverse=true)|map(attribute='v')|list", "[3, 2, 1]"},
                 {"d|items|list|length", "3"}});
}

TEST(Template, AnIteratorIsWalkedOnceAndAlwaysTrue) {
  expect_rendered({{"{% set g = l|select %}{{ g|list }}{{ g|list }}", "[3, 1, 2][]"},
                   {"{{ 'yes' if [] |select else 'no' }}", "yes"}});
  EXPECT_EQ(refusal("{{ (l|select)|length }}"), "chat template, line 1: a generator has no length");
}

TEST(Template, Tests) {
  expect_values({{"nope is defined", "False"},
                 {"n is none", "True"},
                 {"s is string and l is sequence", "True"},
                 {"s is mapping", "False"},
                 {"nope is iterable", "True"},
                 {"t is number", "True"},
                 {"t is integer", "False"},
                 {"x is float", "True"},
                 {"f is false", "True"},
                 {"i is odd", "True"},
                 {"i is not in l", "True"},
                 {"i is gt 3", "True"},
                 {"d.items() is sequence", "False"}});
}

TEST(Template, WhitespaceAroundTags) {
  expect_rendered({{"  {% if t %}\n  x\n  {% endif %}\ny\n", "  x\ny"},
                   {"a  {%- if t -%}  x  {%- endif -%}  \n y", "axy"},
                   {"  {%+ if t +%}\n x{% endif %}", "  \n x"},
                   {"a\n  {# c #}\nb", "a\nb"},
                   {"a {{- 1 -}} \n b", "a1b"},
                   {"{% raw %}\n{{ x }}\n{% endraw %}\ny", "\n{{ x }}\ny"},
                   {"x\r\ny\rz\n\n", "x\ny\nz\n"},
                   {"{{ {'a': {}} }}", "{'a': {}}"},
                   {"{ { {x} %} }}", "{ { {x} %} }}"}});
}

TEST(Template, Loops) {
  expect_rendered(
      {{"{% for a in l %}{{ a }}{{ loop.index }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }};{% endfor %}",
        "312TrueFalse;121FalseFalse;230FalseTrue;"},
       {"{% for a in l if a > 1 %}{{ a }}/{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
        "3/22;2/23;"},
       {"{% for a in [] %}x{% else %}none{% endfor %}", "none"},
       {"{% for k, v in d.items() %}{{ k }}{% endfor %}", "baC"},
       {"{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"},
       {"{% for a in l %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "32"},
       {"{% for a in l %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endfor %}", "3"},
       {"{% for c in 'aß' %}{{ c }}.{% endfor %}", "a.ß."}});
  EXPECT_EQ(refusal("{% for a in n %}{% endfor %}"), "chat template, line 1: a NoneType is not iterable");
  EXPECT_EQ(refusal("{% for a, b in l %}{% endfor %}"), "chat template, line 1: a int is not iterable");
}

TEST(Template, TheConditionOfALoopIsAskedLate) {
  EXPECT_EQ(rendered("{% set ns = namespace(on=true) %}"
                     "{% for a in l if ns.on %}{{ a }}{% set ns.on = false %}{% endfor %}"),
            "3");
}

TEST(Template, Scopes) {
  expect_rendered(
      {{"{% set z = 0 %}{% for a in l %}{% set z = z + a %}{{ z }}{% endfor %}{{ z }}", "3120"},
       {"{% set ns = namespace(z=0) %}{% for a in l %}{% set ns.z = ns.z + a %}{% endfor %}{{ ns.z }}", "6"},
       {"{% if t %}{% set w = 1 %}{% endif %}{{ w }}", "1"},
       {"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
       {"{% set a | upper %}x{{ i }}{% endset %}{{ a }}", "X7"},
       {"{% generation %}{% set g = 1 %}x{% endgeneration %}{{ g }}", "x"},
       {"{% filter upper %}a{{ s }}{% endfilter %}", "AHELLO WORLD"}});
}

TEST(Template, Macros) {
  expect_rendered(
      {{"{% macro m(a, b=a) %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(b=5, a=4) }}{{ m() }}", "[11][45][]"},
       {"{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}", "12"},
       {"{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(a, b=3) m() %}{{ a }}{{ b }}{% endcall %}", "<13>"},
       {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
       {"{% macro m() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ m() }}", "5"},
       {"{% for a in l %}{% macro m() %}{{ a }}{% endmacro %}{{ m() }}{% endfor %}", "312"}});
  EXPECT_EQ(refusal("{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}"),
            "chat template, line 2: the macro 'm' takes at most 1 arguments");
  EXPECT_EQ(refusal("{% macro m(a) %}{% endmacro %}\n{{ m(b=2) }}"),
            "chat template, line 2: the macro 'm' has no parameter 'b'");
}

TEST(Template, Functions) {
  expect_rendered({{"{{ range(1, 10, 3)|list }}{{ dict(a=1)|tojson }}", "[1, 4, 7]{\"a\": 1}"},
                   {"{{ dict(d, a=5)|tojson }}", R"({"b": 1, "a": 5, "C": {"z": [1, null, true]}})"}});
  EXPECT_EQ(refusal("\n\n{{ raise_exception('roles must alternate') }}"),
            "chat template, line 3: roles must alternate");
}

TEST(Template, TheTimeIsGiven) {
  std::tm now{};
  now.tm_year = 125;
  now.tm_mon = 6;
  now.tm_mday = 4;
  EXPECT_EQ(Template("{{ strftime_now('%d %b %Y') }}").render(ordered_json::object(), {}, now), "04 Jul 2025");
  EXPECT_EQ(Template("{{ strftime_now('%Y')|length }}").render(ordered_json::object()), "4");
}

TEST(Template, WhatIsUnknownIsNamedWithItsLine) {
  expect_refused({{"a\n{% nosuch %}", "chat template, line 2: unknown tag 'nosuch'"},
                  {"{% include 'x' %}", "chat template, line 1: unknown tag 'include'"},
                  {"\n{{ s|nosuch }}", "chat template, line 2: unknown filter 'nosuch'"},
                  {"{{ s is nosuch }}", "chat template, line 1: unknown test 'nosuch'"},
                  {"{{ nosuch() }}", "chat template, line 1: 'nosuch' is undefined"},
                  {"{% for a in [] %}{{ 1|nosuch }}{% endfor %}", "chat template, line 1: unknown filter 'nosuch'"},
                  {"{% if t %}\n{{ 1|nosuch }}{% endif %}", "chat template, line 2: unknown filter 'nosuch'"}});
  EXPECT_EQ(rendered("{% if f %}{{ 1|nosuch }}{% endif %}ok"), "ok");
}

// What Jinja2 has but no known chat template uses is not here, and the refusal says what and where.
TEST(Template, WhatIsNotSupportedIsNamedWithItsLine) {
  for (const char* filter :
       {"abs", "batch", "e", "escape", "forceescape", "groupby", "round", "slice", "sum", "wordwrap"})
    EXPECT_EQ(refusal(cat("\n{{ l|", filter, " }}")), cat("chat template, line 2: unknown filter '", filter, "'"));
  for (const char* test : {"callable", "divisibleby", "escaped", "filter", "lower", "sameas", "test", "upper"})
    EXPECT_EQ(refusal(cat("\n{{ l is ", test, "(1) }}")), cat("chat template, line 2: unknown test '", test, "'"));
  for (const char* method : {"count", "index", "isalpha", "isspace", "partition", "zfill"})
    EXPECT_EQ(refusal(cat("\n{{ s.", method, "('x') }}")),
              cat("chat template, line 2: a str has no attribute '", method, "'"));
  for (const char* function : {"cycler", "joiner", "lipsum"})
    EXPECT_EQ(refusal(cat("\n{{ ", function, "(1) }}")), cat("chat template, line 2: '", function, "' is undefined"));
  for (const char* tag : {"with", "block", "import", "autoescape"})
    EXPECT_EQ(refusal(cat("\n{% ", tag, " a %}")), cat("chat template, line 2: unknown tag '", tag, "'"));
  expect_refused(
      {{"\n{{ 2 ** 3 }}", "chat template, line 2: the operator '**' is not supported"},
       {"\n{{ 1 < 2 < 3 }}", "chat template, line 2: comparisons in a chain (a < b < c) are not supported"},
       {"\n{{ dict(**d) }}", "chat template, line 2: '**' in a call is not supported"},
       {"\n{% for a in l recursive %}{% endfor %}", "chat template, line 2: recursive loops are not supported"},
       {"{% for a in l %}\n{{ loop.cycle(1) }}{% endfor %}",
        "chat template, line 2: 'LoopContext' has no attribute 'cycle'"},
       {"\n{{ '{:>5}'.format(1) }}", "chat template, line 2: format: '{:>5}' is not supported"},
       {"\n{{ '%x' % 1 }}", "chat template, line 2: '%x' in a format is not supported, only %s and %d"},
       {"\n{{ '\\N{DIGIT ONE}' }}", "chat template, line 2: the escape '\\N' in a string is not supported"},
       {"{% macro m() %}{{ varargs }}{% endmacro %}\n{{ m(1) }}",
        "chat template, line 2: the macro 'm' takes at most 0 arguments"},
       {"\n{{ d.items() }}",
        "chat template, line 2: a range, view or generator has no text of its own: make it a list"},
       {"\n{{ rows|sort(attribute='n,v') }}", "chat template, line 2: sort: more than one attribute is not supported"},
       {"\n{{ '12'|int(0, 16) }}", "chat template, line 2: int takes at most 1 arguments, got 2"}});
}

TEST(Template, WrongSyntaxHasALine) {
  expect_refused({{"{% if t %}", "chat template, line 1: the template ends before 'endif'"},
                  {"\n{{ 1 +", "chat template, line 2: a tag that begins here has no end"},
                  {"{{ 1 + }}", "chat template, line 1: unexpected '}}'"},
                  {"{{ (1] }}", "chat template, line 1: unexpected ']'"},
                  {"{{ 'abc }}", "chat template, line 1: a string that begins here has no end"},
                  {"x\n{# y", "chat template, line 2: missing end of comment tag"},
                  {"{% raw %}", "chat template, line 1: missing end of raw block"},
                  {"{% break %}", "chat template, line 1: 'break' outside of a loop"},
                  {"{{ a ? b }}", "chat template, line 1: unexpected character '?'"}});
}

TEST(Template, TextInMessagesIsNeverParsed) {
  const ordered_json context = {{"messages", {{{"content", "{{ 7 * 7 }}{% raise %}{# c #}"}}}}};
  EXPECT_EQ(Template("{% for m in messages %}{{ m.content }}{% endfor %}").render(context),
            "{{ 7 * 7 }}{% raise %}{# c #}");
}

TEST(Template, InvalidUtf8PassesThrough) {
  EXPECT_EQ(rendered("\xff{{ '\xc3' }}{{ '\xff\xfe'|length }}{{ '\xff'|upper }}"),
            "\xff\xc3"
            "2\xff");
}

TEST(Template, ThreadsShareATemplate) {
  const Template shared("{% for a in range(200) %}{{ a }}{{ 'x' ~ a }}{% endfor %}");
  const std::string expected = shared.render(world());
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& result : results) threads.emplace_back([&] { result = shared.render(world()); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace quire::jinja
