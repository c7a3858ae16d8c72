// A parsed template: what the parser makes and the interpreter walks. Immutable, so any number of renderings may share
// it.
//
// Names are numbered once (Symbol), filters and tests looked up once; a null function is one that does not exist, in a
// place where that fails only when it is reached.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_filters.h"
#include "text/jinja_tests.h"
#include "text/jinja_value.h"

namespace quire::text::jinja {

using Symbol = int;
struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;  // where null is possible: left out
using Body = std::vector<Statement>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *x
  ExpressionPtr more_named;       // **x
};

struct ConstantForm {
  Value value;
};
struct NameForm {
  Symbol symbol;
};
struct ListForm {
  bool tuple;
  std::vector<ExpressionPtr> elements;
};
struct DictForm {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct AttributeForm {
  ExpressionPtr of;
  std::string name;
};
struct SubscriptForm {
  ExpressionPtr of;
  ExpressionPtr key;
};
struct SliceForm {
  ExpressionPtr of;
  ExpressionPtr first, last, step;  // each may be null
};
struct CallForm {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterForm {
  ExpressionPtr of;  // null: the text of the block that it filters
  std::string name;
  FilterFunction* function;
  CallArguments arguments;
};
struct TestForm {
  ExpressionPtr of;
  std::string name;
  TestFunction* function;
  CallArguments arguments;
};
enum class UnaryOperator { negation, minus, plus };
struct UnaryForm {
  UnaryOperator op;
  ExpressionPtr operand;
};
enum class ArithmeticOperator { add, subtract, multiply, divide, floor_divide, modulo, power };
struct ArithmeticForm {
  ArithmeticOperator op;
  ExpressionPtr left, right;
};
struct LogicForm {
  bool conjunction;  // and; else or
  ExpressionPtr left, right;
};
enum class Relation { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };
struct ComparisonForm {
  ExpressionPtr first;
  std::vector<std::pair<Relation, ExpressionPtr>> rest;  // a < b < c: each with the one before
};
struct JoinForm {  // a ~ b ~ c
  std::vector<ExpressionPtr> parts;
};
struct ChoiceForm {
  ExpressionPtr condition, then, otherwise;  // otherwise may be null
};

struct Expression {
  using Form =
      std::variant<ConstantForm, NameForm, ListForm, DictForm, AttributeForm, SubscriptForm, SliceForm, CallForm,
                   FilterForm, TestForm, UnaryForm, ArithmeticForm, LogicForm, ComparisonForm, JoinForm, ChoiceForm>;
  int line;
  int depth;  // of the tree below, this node included
  Form form;
};

// What `set` and `for` assign to.
struct Target {
  Symbol symbol = -1;
  std::string attribute;      // not empty: of the namespace in `symbol`
  std::vector<Target> parts;  // not empty: a tuple, and the above is unused
  int line = 0;
};

struct Parameter {
  Symbol symbol;
  std::string name;
  ExpressionPtr otherwise;  // may be null
};
struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  // Which of the special names the body reads: only then are such arguments accepted.
  bool reads_caller = false;
  bool reads_varargs = false;
  bool reads_kwargs = false;
};

struct DataStatement {
  std::string text;
};
struct PrintStatement {
  ExpressionPtr value;
};
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct ForStatement {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr condition;  // may be null
  Body body;
  Body otherwise;
};
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
struct SetBlockStatement {
  Target target;
  ExpressionPtr filter;  // may be null
  Body body;
};
struct MacroStatement {
  Symbol symbol;
  std::unique_ptr<const MacroDefinition> macro;
};
struct CallStatement {
  std::unique_ptr<const MacroDefinition> caller;
  ExpressionPtr call;  // its form is a CallForm
};
struct FilterStatement {
  ExpressionPtr filter;
  Body body;
};
struct WithStatement {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
};
struct ScopeStatement {  // {% generation %}: only marks what the model wrote
  Body body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  using Form = std::variant<DataStatement, PrintStatement, IfStatement, ForStatement, SetStatement, SetBlockStatement,
                            MacroStatement, CallStatement, FilterStatement, WithStatement, ScopeStatement,
                            BreakStatement, ContinueStatement>;
  int line;
  Form form;
};

// Names that the interpreter itself knows come first, in this order.
enum KnownSymbol : Symbol { kLoop, kCaller, kVarargs, kKwargs };

struct Tree {
  std::vector<std::string> symbols;  // by number
  Body body;
};

}  // namespace quire::text::jinja
