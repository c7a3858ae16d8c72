#include "text/jinja_parse_expression.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

namespace quire::text::jinja {
namespace {

int depth_of(const ExpressionPtr& expression) { return expression ? expression->depth : 0; }

int deepest(std::initializer_list<const ExpressionPtr*> expressions) {
  int depth = 0;
  for (const ExpressionPtr* expression : expressions) depth = std::max(depth, depth_of(*expression));
  return depth;
}

int deepest(const std::vector<ExpressionPtr>& expressions) {
  int depth = 0;
  for (const ExpressionPtr& expression : expressions) depth = std::max(depth, depth_of(expression));
  return depth;
}

int deepest(const CallArguments& arguments) {
  int depth = std::max(deepest(arguments.positional), deepest({&arguments.more_positional, &arguments.more_named}));
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, depth_of(value));
  return depth;
}

std::optional<ArithmeticOperator> product_operator(const Token& token) {
  if (token.is_symbol("*")) return ArithmeticOperator::multiply;
  if (token.is_symbol("/")) return ArithmeticOperator::divide;
  if (token.is_symbol("//")) return ArithmeticOperator::floor_divide;
  if (token.is_symbol("%")) return ArithmeticOperator::modulo;
  return std::nullopt;
}

}  // namespace

ExpressionParser::ExpressionParser(TokenStream& tokens, const TemplateLimits& limits)
    : tokens_(tokens), most_depth_(limits.syntax_depth) {
  for (const char* known : {"loop", "caller", "varargs", "kwargs"}) symbol(known);
}

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser.nesting_ >= parser.most_depth_)
    fail_at(parser.tokens_.line(), "nested more than ", parser.most_depth_, " deep (limit: syntax_depth)");
  ++parser.nesting_;
}

ExpressionParser::Leniency::Leniency(ExpressionParser& parser, bool lenient)
    : parser_(parser), before_(std::exchange(parser.lenient_, lenient)) {}

Symbol ExpressionParser::symbol(const std::string& name) {
  const auto [found, added] = symbol_index_.emplace(name, static_cast<Symbol>(symbols_.size()));
  if (added) symbols_.push_back(name);
  return found->second;
}

ExpressionPtr ExpressionParser::node(int line, int depth_below, Expression::Form form) const {
  if (depth_below >= most_depth_)
    fail_at(line, "an expression nested or chained more than ", most_depth_, " deep (limit: syntax_depth)");
  return std::make_unique<const Expression>(Expression{line, depth_below + 1, std::move(form)});
}

void ExpressionParser::note_unknown(int line, std::string_view what, const std::string& name) {
  if (!lenient_) unknown_.emplace_back(line, cat("unknown ", what, " '", name, "'"));
}

void ExpressionParser::check_all_known() const {
  if (!unknown_.empty()) fail_at(unknown_.front().first, unknown_.front().second);
}

ExpressionPtr ExpressionParser::parse(Choice choice) {
  const Nesting nesting(*this);
  return choice == Choice::allowed ? parse_choice() : parse_or();
}

bool ExpressionParser::at_tuple_end() const {
  return tokens_.at(TokenKind::print_end) || tokens_.at(TokenKind::block_end) || tokens_.at_symbol(")");
}

ExpressionPtr ExpressionParser::parse_tuple(Choice choice) {
  const int line = tokens_.line();
  if (at_tuple_end()) fail_at(line, "expected an expression, got ", describe(tokens_.current()));
  ExpressionPtr first = parse(choice);
  if (!tokens_.at_symbol(",")) return first;
  std::vector<ExpressionPtr> elements;
  elements.push_back(std::move(first));
  while (tokens_.skip_symbol(",") && !at_tuple_end()) elements.push_back(parse(choice));
  const int depth = deepest(elements);
  return node(line, depth, ListForm{true, std::move(elements)});
}

ExpressionPtr ExpressionParser::parse_choice() {
  int line = tokens_.line();
  const size_t unknown_before = unknown_.size();
  ExpressionPtr then = parse_or();
  while (tokens_.skip_name("if")) {
    unknown_.resize(unknown_before);
    const Leniency lenient(*this, true);
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = tokens_.skip_name("else") ? parse() : nullptr;
    const int depth = deepest({&condition, &then, &otherwise});
    then = node(line, depth, ChoiceForm{std::move(condition), std::move(then), std::move(otherwise)});
    line = tokens_.line();
  }
  return then;
}

ExpressionPtr ExpressionParser::parse_or() {
  const int line = tokens_.line();
  ExpressionPtr left = parse_and();
  while (tokens_.skip_name("or")) {
    ExpressionPtr right = parse_and();
    const int depth = deepest({&left, &right});
    left = node(line, depth, LogicForm{false, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  const int line = tokens_.line();
  ExpressionPtr left = parse_not();
  while (tokens_.skip_name("and")) {
    ExpressionPtr right = parse_not();
    const int depth = deepest({&left, &right});
    left = node(line, depth, LogicForm{true, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  const int line = tokens_.line();
  if (!tokens_.skip_name("not")) return parse_comparison();
  const Nesting nesting(*this);
  ExpressionPtr operand = parse_not();
  const int depth = depth_of(operand);
  return node(line, depth, UnaryForm{UnaryOperator::negation, std::move(operand)});
}

// Takes the tokens of a relation if there is one.
bool ExpressionParser::at_relation(Relation& relation) {
  static const std::pair<std::string_view, Relation> kRelations[] = {
      {"==", Relation::equal},      {"!=", Relation::unequal}, {"<", Relation::less},
      {"<=", Relation::less_equal}, {">", Relation::greater},  {">=", Relation::greater_equal}};
  for (const auto& [symbol, meaning] : kRelations)
    if (tokens_.skip_symbol(symbol)) {
      relation = meaning;
      return true;
    }
  const bool negated = tokens_.at_name("not") && tokens_.ahead().is_name("in");
  if (negated) tokens_.next();
  relation = negated ? Relation::not_in : Relation::in;
  return tokens_.skip_name("in");
}

ExpressionPtr ExpressionParser::parse_comparison() {
  const int line = tokens_.line();
  ExpressionPtr first = parse_sum();
  std::vector<std::pair<Relation, ExpressionPtr>> rest;
  int depth = depth_of(first);
  for (Relation relation; at_relation(relation);) {
    rest.emplace_back(relation, parse_sum());
    depth = std::max(depth, depth_of(rest.back().second));
  }
  if (rest.empty()) return first;
  return node(line, depth, ComparisonForm{std::move(first), std::move(rest)});
}

ExpressionPtr ExpressionParser::parse_sum() {
  const int line = tokens_.line();
  ExpressionPtr left = parse_join();
  while (tokens_.at_symbol("+") || tokens_.at_symbol("-")) {
    const auto op = tokens_.next().text == "+" ? ArithmeticOperator::add : ArithmeticOperator::subtract;
    ExpressionPtr right = parse_join();
    const int depth = deepest({&left, &right});
    left = node(line, depth, ArithmeticForm{op, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_join() {
  const int line = tokens_.line();
  ExpressionPtr first = parse_product();
  if (!tokens_.at_symbol("~")) return first;
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(first));
  while (tokens_.skip_symbol("~")) parts.push_back(parse_product());
  const int depth = deepest(parts);
  return node(line, depth, JoinForm{std::move(parts)});
}

ExpressionPtr ExpressionParser::parse_product() {
  const int line = tokens_.line();
  ExpressionPtr left = parse_power();
  while (const auto op = product_operator(tokens_.current())) {
    tokens_.next();
    ExpressionPtr right = parse_power();
    const int depth = deepest({&left, &right});
    left = node(line, depth, ArithmeticForm{*op, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  const int line = tokens_.line();
  ExpressionPtr left = parse_unary(true);
  while (tokens_.skip_symbol("**")) {
    ExpressionPtr right = parse_unary(true);
    const int depth = deepest({&left, &right});
    left = node(line, depth, ArithmeticForm{ArithmeticOperator::power, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const int line = tokens_.line();
  ExpressionPtr result;
  if (tokens_.at_symbol("-") || tokens_.at_symbol("+")) {
    const Nesting nesting(*this);
    const auto op = tokens_.next().text == "-" ? UnaryOperator::minus : UnaryOperator::plus;
    ExpressionPtr operand = parse_unary(false);
    const int depth = depth_of(operand);
    result = node(line, depth, UnaryForm{op, std::move(operand)});
  } else {
    result = parse_primary();
  }
  result = parse_postfix(std::move(result));
  return with_filters ? parse_filters_and_tests(std::move(result)) : std::move(result);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = tokens_.current();
  switch (token.kind) {
    case TokenKind::name:
      return parse_name();
    case TokenKind::string:
      return parse_strings();
    case TokenKind::integer:
    case TokenKind::real: {
      const int line = token.line;
      return node(line, 0, ConstantForm{tokens_.next().number});
    }
    default:
      break;
  }
  if (token.is_symbol("(")) return parse_parentheses();
  if (token.is_symbol("[")) return parse_list();
  if (token.is_symbol("{")) return parse_dict();
  fail_at(token.line, "unexpected ", describe(token));
}

ExpressionPtr ExpressionParser::parse_name() {
  const Token token = tokens_.next();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return node(token.line, 0, ConstantForm{Value::boolean(true)});
  if (name == "false" || name == "False") return node(token.line, 0, ConstantForm{Value::boolean(false)});
  if (name == "none" || name == "None") return node(token.line, 0, ConstantForm{Value()});
  if (name == "caller") special_names.caller = true;
  if (name == "varargs") special_names.varargs = true;
  if (name == "kwargs") special_names.kwargs = true;
  return node(token.line, 0, NameForm{symbol(name)});
}

ExpressionPtr ExpressionParser::parse_strings() {
  const int line = tokens_.line();
  std::string text;
  while (tokens_.at(TokenKind::string)) text += tokens_.next().text;  // adjacent literals are one
  return node(line, 0, ConstantForm{constant_text(std::move(text))});
}

ExpressionPtr ExpressionParser::parse_parentheses() {
  const int line = tokens_.next().line;
  if (tokens_.skip_symbol(")")) return node(line, 0, ListForm{true, {}});
  ExpressionPtr inside = parse_tuple();
  tokens_.expect_symbol(")");
  return inside;
}

ExpressionPtr ExpressionParser::parse_list() {
  const int line = tokens_.next().line;
  std::vector<ExpressionPtr> elements;
  while (!tokens_.at_symbol("]")) {
    if (!elements.empty()) tokens_.expect_symbol(",");
    if (tokens_.at_symbol("]")) break;
    elements.push_back(parse());
  }
  tokens_.expect_symbol("]");
  const int depth = deepest(elements);
  return node(line, depth, ListForm{false, std::move(elements)});
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int line = tokens_.next().line;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
  int depth = 0;
  while (!tokens_.at_symbol("}")) {
    if (!entries.empty()) tokens_.expect_symbol(",");
    if (tokens_.at_symbol("}")) break;
    ExpressionPtr key = parse();
    tokens_.expect_symbol(":");
    ExpressionPtr value = parse();
    depth = std::max(depth, deepest({&key, &value}));
    entries.emplace_back(std::move(key), std::move(value));
  }
  tokens_.expect_symbol("}");
  return node(line, depth, DictForm{std::move(entries)});
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr of) {
  while (true) {
    if (tokens_.at_symbol("."))
      of = parse_attribute(std::move(of));
    else if (tokens_.at_symbol("["))
      of = parse_subscript(std::move(of));
    else if (tokens_.at_symbol("("))
      of = parse_call(std::move(of));
    else
      return of;
  }
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr of) {
  while (true) {
    if (tokens_.skip_symbol("|"))
      of = parse_filter(std::move(of));
    else if (tokens_.skip_name("is"))
      of = parse_test(std::move(of));
    else if (tokens_.at_symbol("("))
      of = parse_call(std::move(of));
    else
      return of;
  }
}

ExpressionPtr ExpressionParser::parse_attribute(ExpressionPtr of) {
  const int line = tokens_.next().line;
  const int depth = depth_of(of);
  Token token = tokens_.next();
  if (token.kind == TokenKind::name) return node(line, depth, AttributeForm{std::move(of), std::move(token.text)});
  if (token.kind != TokenKind::integer) fail_at(token.line, "expected a name or a number after '.'");
  ExpressionPtr key = node(token.line, 0, ConstantForm{token.number});
  return node(line, depth, SubscriptForm{std::move(of), std::move(key)});
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr of) {
  const int line = tokens_.next().line;
  if (tokens_.at_symbol(":")) return parse_slice(std::move(of), nullptr);
  ExpressionPtr key = parse();
  if (tokens_.at_symbol(":")) return parse_slice(std::move(of), std::move(key));
  tokens_.expect_symbol("]");
  const int depth = deepest({&of, &key});
  return node(line, depth, SubscriptForm{std::move(of), std::move(key)});
}

ExpressionPtr ExpressionParser::parse_slice(ExpressionPtr of, ExpressionPtr first) {
  const int line = tokens_.line();
  ExpressionPtr bounds[2];  // the last and the step
  for (ExpressionPtr& bound : bounds)
    if (tokens_.skip_symbol(":") && !tokens_.at_symbol(":") && !tokens_.at_symbol("]")) bound = parse();
  tokens_.expect_symbol("]");
  const int depth = deepest({&of, &first, &bounds[0], &bounds[1]});
  return node(line, depth, SliceForm{std::move(of), std::move(first), std::move(bounds[0]), std::move(bounds[1])});
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int line = tokens_.line();
  CallArguments arguments = parse_arguments();
  const int depth = std::max(depth_of(callee), deepest(arguments));
  return node(line, depth, CallForm{std::move(callee), std::move(arguments)});
}

CallArguments ExpressionParser::parse_arguments() {
  const int line = tokens_.line();
  tokens_.expect_symbol("(");
  CallArguments arguments;
  bool first = true;
  while (!tokens_.at_symbol(")")) {
    if (!first) tokens_.expect_symbol(",");
    first = false;
    if (tokens_.at_symbol(")")) break;
    parse_argument(arguments, line);
  }
  tokens_.expect_symbol(")");
  return arguments;
}

void ExpressionParser::parse_argument(CallArguments& arguments, int line) {
  bool in_order = !arguments.more_named;
  if (tokens_.skip_symbol("*")) {
    in_order = in_order && !arguments.more_positional;
    arguments.more_positional = parse();
  } else if (tokens_.skip_symbol("**")) {
    arguments.more_named = parse();
  } else if (tokens_.at(TokenKind::name) && tokens_.ahead().is_symbol("=")) {
    std::string name = tokens_.next().text;
    tokens_.next();
    arguments.named.emplace_back(std::move(name), parse());
  } else {
    in_order = in_order && !arguments.more_positional && arguments.named.empty();
    arguments.positional.push_back(parse());
  }
  if (!in_order) fail_at(line, "the arguments of a call are in the wrong order");
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = tokens_.expect(TokenKind::name, "a name").text;
  while (tokens_.skip_symbol(".")) name.append(1, '.').append(tokens_.expect(TokenKind::name, "a name").text);
  return name;
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr of) {
  const int line = tokens_.line();
  std::string name = parse_dotted_name();
  CallArguments arguments = tokens_.at_symbol("(") ? parse_arguments() : CallArguments{};
  FilterFunction* function = find_filter(name);
  if (!function) note_unknown(line, "filter", name);
  const int depth = std::max(depth_of(of), deepest(arguments));
  return node(line, depth, FilterForm{std::move(of), std::move(name), function, std::move(arguments)});
}

ExpressionPtr ExpressionParser::parse_filters_of_block() {
  ExpressionPtr filters = parse_filter(nullptr);
  while (tokens_.skip_symbol("|")) filters = parse_filter(std::move(filters));
  return filters;
}

// `x is divisibleby 3`: one argument may stand without parentheses.
CallArguments ExpressionParser::parse_test_arguments() {
  if (tokens_.at_symbol("(")) return parse_arguments();
  CallArguments arguments;
  const Token& token = tokens_.current();
  const bool literal = token.kind == TokenKind::string || token.kind == TokenKind::integer ||
                       token.kind == TokenKind::real || token.is_symbol("[") || token.is_symbol("{");
  const bool name = token.kind == TokenKind::name && token.text != "else" && token.text != "or" && token.text != "and";
  if (!literal && !name) return arguments;
  if (token.is_name("is")) fail_at(token.line, "tests cannot be chained with 'is'");
  arguments.positional.push_back(parse_postfix(parse_primary()));
  return arguments;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr of) {
  const int line = tokens_.line();
  const bool negated = tokens_.skip_name("not");
  std::string name = parse_dotted_name();
  CallArguments arguments = parse_test_arguments();
  TestFunction* function = find_test(name);
  if (!function) note_unknown(line, "test", name);
  const int depth = std::max(depth_of(of), deepest(arguments));
  ExpressionPtr test = node(line, depth, TestForm{std::move(of), std::move(name), function, std::move(arguments)});
  if (!negated) return test;
  return node(line, depth + 1, UnaryForm{UnaryOperator::negation, std::move(test)});
}

Target ExpressionParser::parse_target(bool with_attributes) {
  if (tokens_.skip_symbol("(")) {
    const Nesting nesting(*this);
    Target inside = parse_targets(with_attributes);
    tokens_.expect_symbol(")");
    return inside;
  }
  const Token token = tokens_.expect(TokenKind::name, "a name to assign to");
  static const char* kConstants[] = {"true", "false", "none", "True", "False", "None"};
  for (const char* constant : kConstants)
    if (token.text == constant) fail_at(token.line, "cannot assign to '", token.text, "'");
  Target target;
  target.symbol = symbol(token.text);
  target.line = token.line;
  if (with_attributes && tokens_.skip_symbol("."))
    target.attribute = tokens_.expect(TokenKind::name, "an attribute's name").text;
  return target;
}

Target ExpressionParser::parse_targets(bool with_attributes) {
  Target first = parse_target(with_attributes);
  if (!tokens_.at_symbol(",")) return first;
  Target tuple;
  tuple.line = first.line;
  tuple.parts.push_back(std::move(first));
  const auto at_target = [&] {
    return tokens_.at_symbol("(") || (tokens_.at(TokenKind::name) && !tokens_.at_name("in"));
  };
  while (tokens_.skip_symbol(",") && at_target()) tuple.parts.push_back(parse_target(with_attributes));
  return tuple;
}

}  // namespace quire::text::jinja
