// Runs a parsed template once.
//
// Scopes are Jinja's: `for`, `macro`, `with` and blocks that are captured have names of their own, `if` has not; every
// turn of a loop starts anew. A name is looked for in the scopes, then in the context, then among the globals.
//
// The parts lie in files of their own: jinja_execute.cc has the statements, jinja_evaluate.cc the expressions,
// jinja_macro.cc the calls of macros.
#pragma once
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_limits.h"
#include "text/jinja_loop.h"
#include "text/jinja_object.h"
#include "text/jinja_scope.h"
#include "text/jinja_tree.h"

namespace quire::text::jinja {

class Interpreter {
 public:
  Interpreter(const Tree& tree, const TemplateLimits& limits, const std::optional<std::tm>& now);

  // Once. Throws Refused with the line of the statement or expression that failed.
  std::string run(const nlohmann::ordered_json& context);

 private:
  class Macro;
  enum class Flow { onwards, end_loop, next_turn };

  // Text being written, by the template or by a block that is captured.
  struct Output {
    std::string text;
    Meter::Hold hold;
  };

  // A scope for as long as it lives, then the one before.
  class Inside {
   public:
    explicit Inside(Interpreter& interpreter) : Inside(interpreter, interpreter.scope_) {}
    Inside(Interpreter& interpreter, Scope* parent);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Interpreter& interpreter_;
    Scope* before_;
    std::unique_ptr<Scope> scope_;
  };

  void load(const nlohmann::ordered_json& context);

  // ---- statements
  Flow execute(const Body& body);
  Flow execute(const DataStatement& statement);
  Flow execute(const PrintStatement& statement);
  Flow execute(const IfStatement& statement);
  Flow execute(const ForStatement& statement);
  Flow execute(const SetStatement& statement);
  Flow execute(const SetBlockStatement& statement);
  Flow execute(const MacroStatement& statement);
  Flow execute(const CallStatement& statement);
  Flow execute(const FilterStatement& statement);
  Flow execute(const WithStatement& statement);
  Flow execute(const ScopeStatement& statement);
  Flow execute(const BreakStatement&) { return Flow::end_loop; }
  Flow execute(const ContinueStatement&) { return Flow::next_turn; }

  Flow run_turns(const ForStatement& statement, Loop& loop);
  void write(std::string_view text);
  Value captured(const Body& body, Flow& flow);
  void assign(const Target& target, const Value& value);
  Value make_macro(const MacroDefinition& definition);

  // ---- expressions
  Value evaluate(const Expression& expression);
  Value evaluate_or(const ExpressionPtr& expression, const Value& otherwise);
  Value evaluate(const ConstantForm& form) { return form.value; }
  Value evaluate(const NameForm& form);
  Value evaluate(const ListForm& form);
  Value evaluate(const DictForm& form);
  Value evaluate(const AttributeForm& form);
  Value evaluate(const SubscriptForm& form);
  Value evaluate(const SliceForm& form);
  Value evaluate(const CallForm& form);
  Value evaluate(const FilterForm& form);
  Value evaluate(const TestForm& form);
  Value evaluate(const UnaryForm& form);
  Value evaluate(const ArithmeticForm& form);
  Value evaluate(const LogicForm& form);
  Value evaluate(const ComparisonForm& form);
  Value evaluate(const JoinForm& form);
  Value evaluate(const ChoiceForm& form);

  bool holds(Relation relation, const Value& left, const Value& right);
  Arguments arguments(const CallArguments& given);
  Value filtered(const Expression& filter, const Value& text);

  const Tree& tree_;
  Machine machine_;
  std::vector<std::optional<Value>> globals_;  // by symbol: the context's, else a function
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  Scope root_;
  Scope* scope_ = &root_;
  Output* output_ = nullptr;
  const Value* block_text_ = nullptr;  // what a filter without an operand filters
  int line_ = 1;
};

}  // namespace quire::text::jinja
