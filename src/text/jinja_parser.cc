#include "text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "text/jinja_lexer.h"
#include "text/jinja_parse_expression.h"
#include "text/jinja_token_stream.h"

namespace quire::text::jinja {
namespace {

using Nesting = ExpressionParser::Nesting;
using Leniency = ExpressionParser::Leniency;
using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::string_view source, const TemplateLimits& limits)
      : tokens_(tokenize(source)), expressions_(tokens_, limits) {}

  Tree run() {
    Tree tree;
    tree.body = parse_until({});
    expressions_.check_all_known();
    tree.symbols = expressions_.take_symbols();
    return tree;
  }

 private:
  Body parse_until(Names ends);
  Body parse_body(Names ends);
  Body parse_whole_body(std::string_view end);
  Body parse_isolated_body(std::string_view end);
  void parse_print(Body& body);
  void parse_block(Body& body);
  Statement::Form parse_statement(const Token& tag);
  Statement::Form parse_if();
  Statement::Form parse_for();
  Statement::Form parse_set();
  Statement::Form parse_macro();
  Statement::Form parse_call();
  Statement::Form parse_filter();
  Statement::Form parse_with();
  void parse_parameters(MacroDefinition& macro);
  void parse_macro_body(MacroDefinition& macro, std::string_view end);
  void check_in_loop(const Token& tag) const;
  void check_no_loop(const Target& target) const;

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;  // around the current place, within the same macro
};

// Statements up to a tag among `ends`, whose name is then current; without ends, up to the end of the template.
Body Parser::parse_until(Names ends) {
  Body body;
  while (!tokens_.at(TokenKind::end)) {
    if (tokens_.at(TokenKind::data)) {
      const Token token = tokens_.next();
      body.push_back({token.line, DataStatement{token.text}});
    } else if (tokens_.at(TokenKind::print_begin)) {
      parse_print(body);
    } else {
      tokens_.expect(TokenKind::block_begin, "a tag");
      if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return tokens_.at_name(end); }))
        return body;
      parse_block(body);
    }
  }
  if (ends.size() > 0) fail_at(tokens_.line(), "the template ends before '", *ends.begin(), "'");
  return body;
}

Body Parser::parse_body(Names ends) {
  tokens_.skip_symbol(":");
  tokens_.expect(TokenKind::block_end, "'%}'");
  return parse_until(ends);
}

Body Parser::parse_whole_body(std::string_view end) {
  Body body = parse_body({end});
  tokens_.next();
  return body;
}

// The body of what has names of its own.
Body Parser::parse_isolated_body(std::string_view end) {
  const Leniency strict(expressions_, false);
  return parse_whole_body(end);
}

void Parser::parse_print(Body& body) {
  const int line = tokens_.next().line;
  ExpressionPtr value = expressions_.parse_tuple();
  tokens_.expect(TokenKind::print_end, "'}}'");
  body.push_back({line, PrintStatement{std::move(value)}});
}

void Parser::parse_block(Body& body) {
  const Nesting nesting(expressions_);
  const Token tag = tokens_.expect(TokenKind::name, "the name of a tag");
  Statement::Form form = parse_statement(tag);
  tokens_.expect(TokenKind::block_end, "'%}'");
  body.push_back({tag.line, std::move(form)});
}

Statement::Form Parser::parse_statement(const Token& tag) {
  const std::string& name = tag.text;
  if (name == "if") return parse_if();
  if (name == "for") return parse_for();
  if (name == "set") return parse_set();
  if (name == "macro") return parse_macro();
  if (name == "call") return parse_call();
  if (name == "filter") return parse_filter();
  if (name == "with") return parse_with();
  if (name == "generation") return ScopeStatement{parse_isolated_body("endgeneration")};
  if (name != "break" && name != "continue") fail_at(tag.line, "unknown tag '", name, "'");
  check_in_loop(tag);
  if (name == "break") return BreakStatement{};
  return ContinueStatement{};
}

void Parser::check_in_loop(const Token& tag) const {
  if (loops_ == 0) fail_at(tag.line, "'", tag.text, "' outside of a loop");
}

Statement::Form Parser::parse_if() {
  const Leniency lenient(expressions_, true);
  IfStatement result;
  do {
    ExpressionPtr condition = expressions_.parse_tuple(ExpressionParser::Choice::forbidden);
    Body body = parse_body({"endif", "elif", "else"});
    result.branches.emplace_back(std::move(condition), std::move(body));
  } while (tokens_.skip_name("elif"));
  if (tokens_.skip_name("else"))
    result.otherwise = parse_whole_body("endif");
  else
    tokens_.expect_name("endif");
  return result;
}

void Parser::check_no_loop(const Target& target) const {
  if (target.symbol == kLoop) fail_at(target.line, "'loop' cannot be what a for statement assigns to");
  for (const Target& part : target.parts) check_no_loop(part);
}

Statement::Form Parser::parse_for() {
  ForStatement result;
  result.target = expressions_.parse_targets(false);
  check_no_loop(result.target);
  tokens_.expect_name("in");
  result.iterable = expressions_.parse_tuple(ExpressionParser::Choice::forbidden);
  const Leniency strict(expressions_, false);
  if (tokens_.skip_name("if")) result.condition = expressions_.parse();
  if (tokens_.at_name("recursive")) fail_at(tokens_.line(), "recursive loops are not supported");
  ++loops_;
  result.body = parse_body({"endfor", "else"});
  --loops_;
  if (tokens_.skip_name("else"))
    result.otherwise = parse_whole_body("endfor");
  else
    tokens_.expect_name("endfor");
  return result;
}

Statement::Form Parser::parse_set() {
  Target target = expressions_.parse_targets(true);
  if (tokens_.skip_symbol("=")) return SetStatement{std::move(target), expressions_.parse_tuple()};
  ExpressionPtr filter = tokens_.skip_symbol("|") ? expressions_.parse_filters_of_block() : nullptr;
  return SetBlockStatement{std::move(target), std::move(filter), parse_isolated_body("endset")};
}

void Parser::parse_parameters(MacroDefinition& macro) {
  tokens_.expect_symbol("(");
  while (!tokens_.at_symbol(")")) {
    if (!macro.parameters.empty()) tokens_.expect_symbol(",");
    const Token name = tokens_.expect(TokenKind::name, "a parameter's name");
    ExpressionPtr otherwise = tokens_.skip_symbol("=") ? expressions_.parse() : nullptr;
    const bool gap = !otherwise && !macro.parameters.empty() && macro.parameters.back().otherwise;
    if (gap) fail_at(name.line, "'", name.text, "' needs a default, since the parameter before it has one");
    macro.parameters.push_back({expressions_.symbol(name.text), name.text, std::move(otherwise)});
  }
  tokens_.expect_symbol(")");
}

void Parser::parse_macro_body(MacroDefinition& macro, std::string_view end) {
  const auto outer_names = std::exchange(expressions_.special_names, {});
  const int outer_loops = std::exchange(loops_, 0);
  macro.body = parse_isolated_body(end);
  macro.reads_caller = expressions_.special_names.caller;
  macro.reads_varargs = expressions_.special_names.varargs;
  macro.reads_kwargs = expressions_.special_names.kwargs;
  // What an inner macro reads counts for the outer one too.
  expressions_.special_names.caller |= outer_names.caller;
  expressions_.special_names.varargs |= outer_names.varargs;
  expressions_.special_names.kwargs |= outer_names.kwargs;
  loops_ = outer_loops;
}

Statement::Form Parser::parse_macro() {
  auto macro = std::make_unique<MacroDefinition>();
  macro->name = tokens_.expect(TokenKind::name, "the macro's name").text;
  const Leniency strict(expressions_, false);
  parse_parameters(*macro);
  parse_macro_body(*macro, "endmacro");
  const Symbol symbol = expressions_.symbol(macro->name);
  return MacroStatement{symbol, std::move(macro)};
}

Statement::Form Parser::parse_call() {
  const int line = tokens_.line();
  auto caller = std::make_unique<MacroDefinition>();
  caller->name = "caller";
  if (tokens_.at_symbol("(")) parse_parameters(*caller);
  ExpressionPtr call = expressions_.parse();
  if (!std::holds_alternative<CallForm>(call->form)) fail_at(line, "'call' needs the call of a macro");
  parse_macro_body(*caller, "endcall");
  return CallStatement{std::move(caller), std::move(call)};
}

Statement::Form Parser::parse_filter() {
  ExpressionPtr filter = expressions_.parse_filters_of_block();
  return FilterStatement{std::move(filter), parse_isolated_body("endfilter")};
}

Statement::Form Parser::parse_with() {
  WithStatement result;
  while (!tokens_.at(TokenKind::block_end)) {
    if (!result.values.empty()) tokens_.expect_symbol(",");
    Target target = expressions_.parse_target(false);
    tokens_.expect_symbol("=");
    result.values.emplace_back(std::move(target), expressions_.parse());
  }
  result.body = parse_isolated_body("endwith");
  return result;
}

}  // namespace

Tree parse_template(std::string_view source, const TemplateLimits& limits) {
  check(source.size() <= limits.source_bytes, "chat template: the source has ", source.size(), " bytes, more than ",
        limits.source_bytes, " (limit: source_bytes)");
  return Parser(source, limits).run();
}

}  // namespace quire::text::jinja
