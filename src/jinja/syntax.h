// A parsed template: what the parser makes and the interpreter walks. Immutable, so any number of renderings may share
// it. Names are numbered once (Symbol), filters and tests looked up once.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/builtins.h"
#include "jinja/operators.h"

namespace quire::jinja {

using Symbol = int;
struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;  // where null is possible: left out
using Body = std::vector<Statement>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *x
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
  ExpressionPtr of, key;
};
struct SliceForm {
  ExpressionPtr of, first, last, step;  // bounds may be null
};
struct CallForm {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterForm {  // a filter or a test
  ExpressionPtr of;  // null: the text of the block that it filters
  std::string_view kind;
  std::string name;
  const Builtin* builtin;  // null: there is none, which fails only when it is reached
  CallArguments arguments;
};
struct UnaryForm {
  UnaryOperator* op;
  ExpressionPtr operand;
};
struct BinaryForm {
  BinaryOperator* op;
  ExpressionPtr left, right;
};
struct LogicForm {
  bool conjunction;  // and; else or
  ExpressionPtr left, right;
};
struct JoinForm {  // a ~ b ~ c
  std::vector<ExpressionPtr> parts;
};
struct ChoiceForm {
  ExpressionPtr condition, then, otherwise;  // otherwise may be null
};

struct Expression {
  using Form = std::variant<ConstantForm, NameForm, ListForm, DictForm, AttributeForm, SubscriptForm, SliceForm,
                            CallForm, FilterForm, UnaryForm, BinaryForm, LogicForm, JoinForm, ChoiceForm>;
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
struct GenerationStatement {  // only marks what the model wrote
  Body body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  using Form = std::variant<DataStatement, PrintStatement, IfStatement, ForStatement, SetStatement, SetBlockStatement,
                            MacroStatement, CallStatement, FilterStatement, GenerationStatement, BreakStatement,
                            ContinueStatement>;
  int line;
  Form form;
};

// Names that the interpreter itself knows come first, in this order.
enum KnownSymbol : Symbol { kLoop, kCaller };

struct Tree {
  std::vector<std::string> symbols;  // by number
  Body body;
};

// Statements: for (with else and an inline if), if / elif / else, set (also of a block), macro, call, filter, raw,
// break, continue, generation. Other templates (extends, include, import, block) do not exist here.
//
// Errors   CheckError with the line and the reason: wrong syntax, an unknown tag, an unknown filter or test outside of
//          any `if`, a limit; nesting past the limit too, before the stack feels it.
Tree parse_template(std::string_view source, const Limits& limits);

}  // namespace quire::jinja
