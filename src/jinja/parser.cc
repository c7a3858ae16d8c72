#include <algorithm>
#include <initializer_list>
#include <map>

#include "jinja/lexer.h"
#include "jinja/syntax.h"

namespace quire::jinja {
namespace {

// How deep a node's operands are.
struct DepthBelow {
  static int of(const ExpressionPtr& expression) { return expression ? expression->depth : 0; }
  static int of(const std::vector<ExpressionPtr>& expressions) {
    int depth = 0;
    for (const ExpressionPtr& expression : expressions) depth = std::max(depth, of(expression));
    return depth;
  }
  static int of(const CallArguments& arguments) {
    int depth = std::max(of(arguments.positional), of(arguments.more_positional));
    for (const auto& [name, value] : arguments.named) depth = std::max(depth, of(value));
    return depth;
  }

  int operator()(const ConstantForm&) const { return 0; }
  int operator()(const NameForm&) const { return 0; }
  int operator()(const ListForm& form) const { return of(form.elements); }
  int operator()(const DictForm& form) const {
    int depth = 0;
    for (const auto& [key, value] : form.entries) depth = std::max({depth, of(key), of(value)});
    return depth;
  }
  int operator()(const AttributeForm& form) const { return of(form.of); }
  int operator()(const SubscriptForm& form) const { return std::max(of(form.of), of(form.key)); }
  int operator()(const SliceForm& form) const {
    return std::max({of(form.of), of(form.first), of(form.last), of(form.step)});
  }
  int operator()(const CallForm& form) const { return std::max(of(form.callee), of(form.arguments)); }
  int operator()(const FilterForm& form) const { return std::max(of(form.of), of(form.arguments)); }
  int operator()(const UnaryForm& form) const { return of(form.operand); }
  int operator()(const BinaryForm& form) const { return std::max(of(form.left), of(form.right)); }
  int operator()(const LogicForm& form) const { return std::max(of(form.left), of(form.right)); }
  int operator()(const JoinForm& form) const { return of(form.parts); }
  int operator()(const ChoiceForm& form) const {
    return std::max({of(form.condition), of(form.then), of(form.otherwise)});
  }
};

std::string describe(const Token& token) {
  if (token.kind == Token::name || token.kind == Token::symbol) return cat("'", token.text, "'");
  static constexpr std::string_view kKinds[] = {
      "text", "'{{'", "'}}'", "'{%'", "'%}'", "", "a string", "a number", "a number", "", "the end of the template"};
  return std::string(kKinds[token.kind]);
}

// Another value for as long as this lives.
template <class T>
class Temporarily {
 public:
  Temporarily(T& place, T value) : place_(place), before_(std::exchange(place, std::move(value))) {}
  ~Temporarily() { place_ = std::move(before_); }
  Temporarily(const Temporarily&) = delete;
  Temporarily& operator=(const Temporarily&) = delete;

 private:
  T& place_;
  T before_;
};

// By descent, in Jinja's order of precedence:
//
//   x if c else y  <  or  <  and  <  not  <  == != < <= > >= in  <  + -  <  ~  <  * / // %  <  -  <  . [] ()  <  | is
class Parser {
 public:
  Parser(std::string_view source, const Limits& limits) : tokens_(tokenize(source)), most_depth_(limits.syntax_depth) {
    for (const char* known : {"loop", "caller"}) symbol(known);
  }

  Tree run() {
    Tree tree;
    tree.body = parse_until({});
    if (!unknown_.empty()) fail_at(unknown_.front().first, unknown_.front().second);
    tree.symbols = std::move(symbols_);
    return tree;
  }

 private:
  using Names = std::initializer_list<std::string_view>;
  enum class Choice { allowed, forbidden };  // whether `x if c` belongs to the expression

  // ---- tokens
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  bool at(Token::Kind kind) const { return current().kind == kind; }
  bool at_symbol(std::string_view symbol) const { return current().is_symbol(symbol); }
  bool at_name(std::string_view name) const { return current().is_name(name); }
  const Token& next() { return tokens_[at(Token::end) ? at_ : at_++]; }
  bool skip_symbol(std::string_view symbol) { return at_symbol(symbol) && (++at_, true); }
  bool skip_name(std::string_view name) { return at_name(name) && (++at_, true); }
  const Token& expect(Token::Kind kind, std::string_view what) {
    if (!at(kind)) fail_at(line(), "expected ", what, ", got ", describe(current()));
    return next();
  }
  void expect_symbol(std::string_view symbol) {
    if (!skip_symbol(symbol)) fail_at(line(), "expected '", symbol, "', got ", describe(current()));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_at(line(), "expected '", name, "', got ", describe(current()));
  }

  ExpressionPtr node(int line, Expression::Form form) const {
    const int depth = std::visit(DepthBelow(), form) + 1;
    if (depth > most_depth_)
      fail_at(line, "an expression nested or chained more than ", most_depth_, " deep (limit: syntax_depth)");
    return std::make_unique<const Expression>(Expression{line, depth, std::move(form)});
  }
  Symbol symbol(const std::string& name) {
    const auto [found, added] = symbol_index_.emplace(name, static_cast<Symbol>(symbols_.size()));
    if (added) symbols_.push_back(name);
    return found->second;
  }
  Temporarily<int> one_level_deeper() {
    if (nesting_ >= most_depth_) fail_at(line(), "nested more than ", most_depth_, " deep (limit: syntax_depth)");
    return {nesting_, nesting_ + 1};
  }

  // ---- statements

  // Statements up to a tag among `ends`, whose name is then current; without ends, up to the end of the template.
  Body parse_until(Names ends) {
    Body body;
    while (!at(Token::end)) {
      const Token& token = next();
      if (token.kind == Token::data) {
        body.push_back({token.line, DataStatement{token.text}});
      } else if (token.kind == Token::print_begin) {
        body.push_back({token.line, PrintStatement{parse_tuple()}});
        expect(Token::print_end, "'}}'");
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return at_name(end); })) return body;
        const auto nested = one_level_deeper();
        const Token& tag = expect(Token::name, "the name of a tag");
        body.push_back({tag.line, parse_statement(tag)});
        expect(Token::block_end, "'%}'");
      }
    }
    if (ends.size() > 0) fail_at(line(), "the template ends before '", *ends.begin(), "'");
    return body;
  }

  Body parse_body(Names ends) {
    skip_symbol(":");
    expect(Token::block_end, "'%}'");
    return parse_until(ends);
  }

  Body parse_whole_body(std::string_view end) {
    Body body = parse_body({end});
    next();
    return body;
  }

  // The body of what has names of its own.
  Body parse_scoped_body(std::string_view end) {
    const Temporarily strict(lenient_, false);
    return parse_whole_body(end);
  }

  Body parse_else(std::string_view end) {
    if (skip_name("else")) return parse_whole_body(end);
    expect_name(end);
    return {};
  }

  Statement::Form parse_statement(const Token& tag) {
    const std::string& name = tag.text;
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call_block();
    if (name == "filter") return parse_filter_block();
    if (name == "generation") return GenerationStatement{parse_scoped_body("endgeneration")};
    if (name != "break" && name != "continue") fail_at(tag.line, "unknown tag '", name, "'");
    if (loops_ == 0) fail_at(tag.line, "'", name, "' outside of a loop");
    if (name == "break") return BreakStatement{};
    return ContinueStatement{};
  }

  Statement::Form parse_if() {
    const Temporarily lenient(lenient_, true);
    IfStatement result;
    do {
      ExpressionPtr condition = parse_tuple(Choice::forbidden);
      result.branches.emplace_back(std::move(condition), parse_body({"endif", "elif", "else"}));
    } while (skip_name("elif"));
    result.otherwise = parse_else("endif");
    return result;
  }

  Statement::Form parse_for() {
    ForStatement result;
    result.target = parse_targets(false);
    expect_name("in");
    result.iterable = parse_tuple(Choice::forbidden);
    const Temporarily strict(lenient_, false);
    if (skip_name("if")) result.condition = parse();
    if (at_name("recursive")) fail_at(line(), "recursive loops are not supported");
    ++loops_;
    result.body = parse_body({"endfor", "else"});
    --loops_;
    result.otherwise = parse_else("endfor");
    return result;
  }

  Statement::Form parse_set() {
    Target target = parse_targets(true);
    if (skip_symbol("=")) return SetStatement{std::move(target), parse_tuple()};
    ExpressionPtr filter = skip_symbol("|") ? parse_filters_of_block() : nullptr;
    return SetBlockStatement{std::move(target), std::move(filter), parse_scoped_body("endset")};
  }

  void parse_parameters(MacroDefinition& macro) {
    expect_symbol("(");
    parse_elements(")", [&] {
      const Token& name = expect(Token::name, "a parameter's name");
      ExpressionPtr otherwise = skip_symbol("=") ? parse() : nullptr;
      const bool gap = !otherwise && !macro.parameters.empty() && macro.parameters.back().otherwise;
      if (gap) fail_at(name.line, "'", name.text, "' needs a default, since the parameter before it has one");
      macro.parameters.push_back({symbol(name.text), name.text, std::move(otherwise)});
    });
  }

  Statement::Form parse_macro() {
    auto macro = std::make_unique<MacroDefinition>();
    macro->name = expect(Token::name, "the macro's name").text;
    const Temporarily strict(lenient_, false);
    const Temporarily no_loop(loops_, 0);
    parse_parameters(*macro);
    macro->body = parse_whole_body("endmacro");
    const Symbol name = symbol(macro->name);
    return MacroStatement{name, std::move(macro)};
  }

  Statement::Form parse_call_block() {
    const int begun = line();
    auto caller = std::make_unique<MacroDefinition>();
    caller->name = "caller";
    if (at_symbol("(")) parse_parameters(*caller);
    ExpressionPtr call = parse();
    if (!std::holds_alternative<CallForm>(call->form)) fail_at(begun, "'call' needs the call of a macro");
    const Temporarily no_loop(loops_, 0);
    caller->body = parse_scoped_body("endcall");
    return CallStatement{std::move(caller), std::move(call)};
  }

  Statement::Form parse_filter_block() {
    ExpressionPtr filter = parse_filters_of_block();
    return FilterStatement{std::move(filter), parse_scoped_body("endfilter")};
  }

  Target parse_target(bool with_attributes) {
    if (skip_symbol("(")) {
      const auto nested = one_level_deeper();
      Target inside = parse_targets(with_attributes);
      expect_symbol(")");
      return inside;
    }
    const Token& token = expect(Token::name, "a name to assign to");
    for (const std::string_view refused : {"true", "false", "none", "True", "False", "None"})
      if (token.text == refused) fail_at(token.line, "cannot assign to '", token.text, "'");
    Target target{.symbol = symbol(token.text), .attribute = {}, .parts = {}, .line = token.line};
    if (!with_attributes && target.symbol == kLoop) fail_at(token.line, "cannot assign to 'loop'");
    if (with_attributes && skip_symbol(".")) target.attribute = expect(Token::name, "an attribute's name").text;
    return target;
  }

  // One, or a tuple of them; in parentheses or not.
  Target parse_targets(bool with_attributes) {
    Target first = parse_target(with_attributes);
    if (!at_symbol(",")) return first;
    Target tuple;
    tuple.line = first.line;
    tuple.parts.push_back(std::move(first));
    const auto at_target = [&] { return at_symbol("(") || (at(Token::name) && !at_name("in")); };
    while (skip_symbol(",") && at_target()) tuple.parts.push_back(parse_target(with_attributes));
    return tuple;
  }

  // ---- expressions

  ExpressionPtr parse(Choice choice = Choice::allowed) {
    const auto nested = one_level_deeper();
    return choice == Choice::allowed ? parse_choice() : parse_logic(false);
  }

  // One expression, or several with commas.
  ExpressionPtr parse_tuple(Choice choice = Choice::allowed) {
    const int begun = line();
    const auto at_end = [&] { return at(Token::print_end) || at(Token::block_end) || at_symbol(")"); };
    if (at_end()) fail_at(begun, "expected an expression, got ", describe(current()));
    ExpressionPtr first = parse(choice);
    if (!at_symbol(",")) return first;
    std::vector<ExpressionPtr> elements;
    elements.push_back(std::move(first));
    while (skip_symbol(",") && !at_end()) elements.push_back(parse(choice));
    return node(begun, ListForm{true, std::move(elements)});
  }

  ExpressionPtr parse_choice() {
    int begun = line();
    const size_t unknown_before = unknown_.size();
    ExpressionPtr then = parse_logic(false);
    while (skip_name("if")) {
      unknown_.resize(unknown_before);
      const Temporarily lenient(lenient_, true);
      ExpressionPtr condition = parse_logic(false);
      ExpressionPtr otherwise = skip_name("else") ? parse() : nullptr;
      then = node(begun, ChoiceForm{std::move(condition), std::move(then), std::move(otherwise)});
      begun = line();
    }
    return then;
  }

  ExpressionPtr parse_logic(bool conjunction) {
    const int begun = line();
    const auto parse_operand = [&] { return conjunction ? parse_not() : parse_logic(true); };
    ExpressionPtr left = parse_operand();
    while (skip_name(conjunction ? "and" : "or"))
      left = node(begun, LogicForm{conjunction, std::move(left), parse_operand()});
    return left;
  }

  ExpressionPtr parse_not() {
    const int begun = line();
    if (!skip_name("not")) return parse_comparison();
    const auto nested = one_level_deeper();
    return node(begun, UnaryForm{negation, parse_not()});
  }

  // The symbol of a comparison, and its tokens are gone; empty: there is none.
  std::string take_relation() {
    for (const std::string_view symbol : {"==", "!=", "<", "<=", ">", ">="})
      if (at_symbol(symbol)) return next().text;
    if (at_name("in")) return next().text;
    if (!at_name("not") || !ahead().is_name("in")) return "";
    next();
    next();
    return "not in";
  }

  ExpressionPtr parse_comparison() {
    const int begun = line();
    ExpressionPtr left = parse_sum();
    const std::string relation = take_relation();
    if (relation.empty()) return left;
    const bool negated = relation == "not in";
    left = node(begun, BinaryForm{find_operator(negated ? "in" : relation), std::move(left), parse_sum()});
    if (!take_relation().empty()) fail_at(begun, "comparisons in a chain (a < b < c) are not supported");
    return negated ? node(begun, UnaryForm{negation, std::move(left)}) : std::move(left);
  }

  ExpressionPtr parse_sum() {
    const int begun = line();
    ExpressionPtr left = parse_join();
    while (at_symbol("+") || at_symbol("-")) {
      BinaryOperator* op = find_operator(next().text);
      left = node(begun, BinaryForm{op, std::move(left), parse_join()});
    }
    return left;
  }

  ExpressionPtr parse_join() {
    const int begun = line();
    ExpressionPtr first = parse_product();
    if (!at_symbol("~")) return first;
    std::vector<ExpressionPtr> parts;
    parts.push_back(std::move(first));
    while (skip_symbol("~")) parts.push_back(parse_product());
    return node(begun, JoinForm{std::move(parts)});
  }

  ExpressionPtr parse_product() {
    const int begun = line();
    ExpressionPtr left = parse_unary(true);
    while (at_symbol("*") || at_symbol("/") || at_symbol("//") || at_symbol("%")) {
      BinaryOperator* op = find_operator(next().text);
      left = node(begun, BinaryForm{op, std::move(left), parse_unary(true)});
    }
    if (at_symbol("**")) fail_at(line(), "the operator '**' is not supported");
    return left;
  }

  ExpressionPtr parse_unary(bool with_filters) {
    const int begun = line();
    ExpressionPtr result;
    if (skip_symbol("-")) {
      const auto nested = one_level_deeper();
      result = node(begun, UnaryForm{negate, parse_unary(false)});
    } else {
      result = parse_primary();
    }
    result = parse_postfix(std::move(result));
    return with_filters ? parse_filters_and_tests(std::move(result)) : std::move(result);
  }

  ExpressionPtr parse_primary() {
    const Token& token = current();
    if (token.kind == Token::name) return parse_name();
    if (token.kind == Token::integer || token.kind == Token::real) return node(token.line, ConstantForm{next().number});
    if (token.kind == Token::string) {
      std::string text;
      while (at(Token::string)) text += next().text;  // adjacent literals are one
      return node(token.line, ConstantForm{constant_text(std::move(text))});
    }
    if (token.is_symbol("(")) return parse_parentheses();
    if (token.is_symbol("[")) return parse_list();
    if (token.is_symbol("{")) return parse_dict();
    fail_at(token.line, "unexpected ", describe(token));
  }

  ExpressionPtr parse_name() {
    const Token& token = next();
    const std::string& name = token.text;
    if (name == "true" || name == "True") return node(token.line, ConstantForm{Value::boolean(true)});
    if (name == "false" || name == "False") return node(token.line, ConstantForm{Value::boolean(false)});
    if (name == "none" || name == "None") return node(token.line, ConstantForm{Value()});
    return node(token.line, NameForm{symbol(name)});
  }

  ExpressionPtr parse_parentheses() {
    const int begun = next().line;
    if (skip_symbol(")")) return node(begun, ListForm{true, {}});
    ExpressionPtr inside = parse_tuple();
    expect_symbol(")");
    return inside;
  }

  // What is parted by commas, up to the closing bracket; a comma may also stand before that.
  template <class Element>
  void parse_elements(std::string_view close, const Element& parse_element) {
    while (!skip_symbol(close)) {
      parse_element();
      if (!at_symbol(close)) expect_symbol(",");
    }
  }

  ExpressionPtr parse_list() {
    const int begun = next().line;
    std::vector<ExpressionPtr> elements;
    parse_elements("]", [&] { elements.push_back(parse()); });
    return node(begun, ListForm{false, std::move(elements)});
  }

  ExpressionPtr parse_dict() {
    const int begun = next().line;
    std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
    parse_elements("}", [&] {
      ExpressionPtr key = parse();
      expect_symbol(":");
      entries.emplace_back(std::move(key), parse());
    });
    return node(begun, DictForm{std::move(entries)});
  }

  ExpressionPtr parse_postfix(ExpressionPtr of) {
    while (true) {
      if (at_symbol("."))
        of = parse_attribute(std::move(of));
      else if (at_symbol("["))
        of = parse_subscript(std::move(of));
      else if (at_symbol("("))
        of = parse_call(std::move(of));
      else
        return of;
    }
  }

  ExpressionPtr parse_attribute(ExpressionPtr of) {
    const int begun = next().line;
    const Token& token = next();
    if (token.kind == Token::name) return node(begun, AttributeForm{std::move(of), token.text});
    if (token.kind != Token::integer) fail_at(token.line, "expected a name or a number after '.'");
    return node(begun, SubscriptForm{std::move(of), node(token.line, ConstantForm{token.number})});
  }

  ExpressionPtr parse_subscript(ExpressionPtr of) {
    const int begun = next().line;
    ExpressionPtr bounds[3];  // first, last, step
    if (!at_symbol(":")) bounds[0] = parse();
    const bool slice = at_symbol(":");
    for (ExpressionPtr* bound = bounds + 1; slice && bound < std::end(bounds); ++bound)
      if (skip_symbol(":") && !at_symbol(":") && !at_symbol("]")) *bound = parse();
    expect_symbol("]");
    if (!slice) return node(begun, SubscriptForm{std::move(of), std::move(bounds[0])});
    return node(begun, SliceForm{std::move(of), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2])});
  }

  ExpressionPtr parse_call(ExpressionPtr callee) {
    const int begun = line();
    return node(begun, CallForm{std::move(callee), parse_arguments()});
  }

  CallArguments parse_arguments() {
    const int begun = line();
    expect_symbol("(");
    CallArguments arguments;
    parse_elements(")", [&] {
      if (at_symbol("**")) fail_at(line(), "'**' in a call is not supported");
      bool in_order = true;
      if (skip_symbol("*")) {
        in_order = !arguments.more_positional;
        arguments.more_positional = parse();
      } else if (at(Token::name) && ahead().is_symbol("=")) {
        const std::string& name = next().text;
        next();
        arguments.named.emplace_back(name, parse());
      } else {
        in_order = !arguments.more_positional && arguments.named.empty();
        arguments.positional.push_back(parse());
      }
      if (!in_order) fail_at(begun, "the arguments of a call are in the wrong order");
    });
    return arguments;
  }

  ExpressionPtr parse_filters_and_tests(ExpressionPtr of) {
    while (true) {
      if (skip_symbol("|"))
        of = parse_filter(std::move(of));
      else if (skip_name("is"))
        of = parse_test(std::move(of));
      else if (at_symbol("("))
        of = parse_call(std::move(of));
      else
        return of;
    }
  }

  ExpressionPtr parse_filter(ExpressionPtr of) {
    const Token& name = expect(Token::name, "a filter's name");
    const Builtin* filter = find_filter(name.text);
    CallArguments arguments = at_symbol("(") ? parse_arguments() : CallArguments{};
    if (!filter && !lenient_) unknown_.emplace_back(name.line, cat("unknown filter '", name.text, "'"));
    return node(name.line, FilterForm{std::move(of), "filter", name.text, filter, std::move(arguments)});
  }

  // A chain of filters without what they filter, as {% filter %} and {% set x | f %} have it.
  ExpressionPtr parse_filters_of_block() {
    ExpressionPtr filters = parse_filter(nullptr);
    while (skip_symbol("|")) filters = parse_filter(std::move(filters));
    return filters;
  }

  // `x is eq 3`: one argument may stand without parentheses.
  CallArguments parse_test_arguments() {
    if (at_symbol("(")) return parse_arguments();
    CallArguments arguments;
    const Token& token = current();
    const bool literal = token.kind == Token::string || token.kind == Token::integer || token.kind == Token::real ||
                         token.is_symbol("[") || token.is_symbol("{");
    const bool name = token.kind == Token::name && token.text != "else" && token.text != "or" && token.text != "and";
    if (!literal && !name) return arguments;
    if (token.is_name("is")) fail_at(token.line, "tests cannot be chained with 'is'");
    arguments.positional.push_back(parse_postfix(parse_primary()));
    return arguments;
  }

  ExpressionPtr parse_test(ExpressionPtr of) {
    const bool negated = skip_name("not");
    const Token& name = expect(Token::name, "a test's name");
    const Builtin* test = find_test(name.text);
    CallArguments arguments = parse_test_arguments();
    if (!test && !lenient_) unknown_.emplace_back(name.line, cat("unknown test '", name.text, "'"));
    ExpressionPtr result = node(name.line, FilterForm{std::move(of), "test", name.text, test, std::move(arguments)});
    return negated ? node(name.line, UnaryForm{negation, std::move(result)}) : std::move(result);
  }

  std::vector<Token> tokens_;  // the last is `end`
  size_t at_ = 0;
  const int most_depth_;
  int nesting_ = 0;
  int loops_ = 0;         // around the current place, within the same macro
  bool lenient_ = false;  // inside of `if`: an unknown filter or test fails only when it is reached
  std::vector<std::pair<int, std::string>> unknown_;  // in other places, with their lines
  std::map<std::string, Symbol> symbol_index_;
  std::vector<std::string> symbols_;
};

}  // namespace

Tree parse_template(std::string_view source, const Limits& limits) {
  check(source.size() <= limits.source_bytes, "chat template: the source has ", source.size(), " bytes, more than ",
        limits.source_bytes, " (limit: source_bytes)");
  return Parser(source, limits).run();
}

}  // namespace quire::jinja
