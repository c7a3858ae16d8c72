// Expressions, from tokens to trees: Jinja's grammar and precedence.
//
//   x if c else y  <  or  <  and  <  not  <  == != < <= > >= in  <  + -  <  ~  <  * / // %  <  **  <  - +  <  . [] ()
//   < | is
//
// Errors   CheckError with the line; nesting past the limit too, before the stack feels it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "text/jinja_limits.h"
#include "text/jinja_token_stream.h"
#include "text/jinja_tree.h"

namespace quire::text::jinja {

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, const TemplateLimits& limits);

  enum class Choice { allowed, forbidden };  // whether `x if c` belongs to the expression
  ExpressionPtr parse(Choice choice = Choice::allowed);
  ExpressionPtr parse_tuple(Choice choice = Choice::allowed);  // one expression, or several with commas

  // A chain of filters without what they filter, as {% filter %} and {% set x | f %} have it.
  ExpressionPtr parse_filters_of_block();
  Target parse_target(bool with_attributes);
  Target parse_targets(bool with_attributes);  // one, or a tuple of them; in parentheses or not

  Symbol symbol(const std::string& name);
  std::vector<std::string> take_symbols() { return std::move(symbols_); }

  // While it lives: one more level of nesting.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  // While it lives: whether an unknown filter or test fails only when it is reached, as inside of `if`.
  class Leniency {
   public:
    Leniency(ExpressionParser& parser, bool lenient);
    ~Leniency() { parser_.lenient_ = before_; }
    Leniency(const Leniency&) = delete;
    Leniency& operator=(const Leniency&) = delete;

   private:
    ExpressionParser& parser_;
    bool before_;
  };
  void check_all_known() const;  // throws for the first unknown filter or test that is not in a lenient place

  // The special names that were read since the definition of a macro began.
  struct SpecialNames {
    bool caller = false, varargs = false, kwargs = false;
  };
  SpecialNames special_names;

 private:
  ExpressionPtr parse_choice();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_join();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_strings();
  ExpressionPtr parse_parentheses();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr of);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr of);
  ExpressionPtr parse_attribute(ExpressionPtr of);
  ExpressionPtr parse_subscript(ExpressionPtr of);
  ExpressionPtr parse_slice(ExpressionPtr of, ExpressionPtr first);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_filter(ExpressionPtr of);
  ExpressionPtr parse_test(ExpressionPtr of);
  CallArguments parse_arguments();
  void parse_argument(CallArguments& arguments, int line);
  CallArguments parse_test_arguments();
  std::string parse_dotted_name();
  bool at_relation(Relation& relation);
  bool at_tuple_end() const;

  ExpressionPtr node(int line, int depth_below, Expression::Form form) const;
  void note_unknown(int line, std::string_view what, const std::string& name);

  TokenStream& tokens_;
  const int most_depth_;
  int nesting_ = 0;
  bool lenient_ = false;
  std::vector<std::pair<int, std::string>> unknown_;  // line and message
  std::map<std::string, Symbol> symbol_index_;
  std::vector<std::string> symbols_;
};

}  // namespace quire::text::jinja
