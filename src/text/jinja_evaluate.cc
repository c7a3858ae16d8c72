#include <utility>

#include "text/jinja_compare.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_show.h"

namespace quire::text::jinja {

Value Interpreter::evaluate(const Expression& expression) {
  machine_.meter.step();
  const Meter::Level level(machine_.meter);
  line_ = expression.line;
  return std::visit([this](const auto& form) { return evaluate(form); }, expression.form);
}

Value Interpreter::evaluate_or(const ExpressionPtr& expression, const Value& otherwise) {
  return expression ? evaluate(*expression) : otherwise;
}

Value Interpreter::evaluate(const NameForm& form) {
  if (const Value* value = scope_->find(form.symbol)) return *value;
  const auto symbol = static_cast<size_t>(form.symbol);
  if (globals_[symbol]) return *globals_[symbol];
  return Value::undefined(machine_.meter, cat("'", tree_.symbols[symbol], "' is undefined"));
}

Value Interpreter::evaluate(const ListForm& form) {
  std::vector<Value> elements;
  elements.reserve(form.elements.size());
  for (const ExpressionPtr& element : form.elements) elements.push_back(evaluate(*element));
  return make_sequence(machine_.meter, form.tuple ? SequenceKind::tuple : SequenceKind::list, std::move(elements));
}

Value Interpreter::evaluate(const DictForm& form) {
  auto dict = std::make_shared<Dict>(machine_.meter);
  for (const auto& [key, value] : form.entries) {
    const Value name = evaluate(*key);
    dict->set(name, evaluate(*value));
  }
  return make_dict(std::move(dict));
}

Value Interpreter::evaluate(const AttributeForm& form) { return attribute_of(machine_, evaluate(*form.of), form.name); }

Value Interpreter::evaluate(const SubscriptForm& form) {
  const Value value = evaluate(*form.of);
  return element_of(machine_, value, evaluate(*form.key));
}

Value Interpreter::evaluate(const SliceForm& form) {
  const Value value = evaluate(*form.of);
  const Value first = evaluate_or(form.first, Value());
  const Value last = evaluate_or(form.last, Value());
  return slice_of(machine_, value, first, last, evaluate_or(form.step, Value()));
}

Arguments Interpreter::arguments(const CallArguments& given) {
  Arguments result;
  for (const ExpressionPtr& value : given.positional) result.positional.push_back(evaluate(*value));
  for (const auto& [name, value] : given.named) result.named.emplace_back(name, evaluate(*value));
  if (given.more_positional)
    for (Value& value : elements_of(machine_.meter, evaluate(*given.more_positional)))
      result.positional.push_back(std::move(value));
  if (given.more_named) {
    const Value more = evaluate(*given.more_named);
    check(more.dict(), "'**' needs a dict, not ", more.type());
    for (const auto& [name, value] : more.dict()->entries()) result.named.emplace_back(text_of(name, "'**'"), value);
  }
  return result;
}

Value Interpreter::evaluate(const CallForm& form) {
  const int line = line_;
  const Value callee = evaluate(*form.callee);
  const Arguments given = arguments(form.arguments);
  line_ = line;
  return call(machine_, callee, given);
}

Value Interpreter::evaluate(const FilterForm& form) {
  const int line = line_;
  const Value input = form.of ? evaluate(*form.of) : *block_text_;
  const Arguments given = arguments(form.arguments);
  line_ = line;
  check(form.function, "unknown filter '", form.name, "'");
  return form.function(machine_, input, given);
}

Value Interpreter::evaluate(const TestForm& form) {
  const int line = line_;
  const Value value = evaluate(*form.of);
  const Arguments given = arguments(form.arguments);
  line_ = line;
  check(form.function, "unknown test '", form.name, "'");
  return Value::boolean(form.function(machine_, value, given));
}

Value Interpreter::evaluate(const UnaryForm& form) {
  const Value value = evaluate(*form.operand);
  switch (form.op) {
    case UnaryOperator::negation:
      return Value::boolean(!truth(value));
    case UnaryOperator::minus:
      return negate(value);
    case UnaryOperator::plus:
      break;
  }
  value.check_defined();
  check(value.number().has_value(), "'+' does not work on ", value.type());
  return value.boolean() ? Value::integer(*value.integer()) : value;
}

Value Interpreter::evaluate(const ArithmeticForm& form) {
  const int line = line_;
  const Value left = evaluate(*form.left);
  const Value right = evaluate(*form.right);
  line_ = line;
  return calculate(machine_, form.op, left, right);
}

Value Interpreter::evaluate(const LogicForm& form) {
  Value left = evaluate(*form.left);
  return truth(left) == form.conjunction ? evaluate(*form.right) : left;
}

bool Interpreter::holds(Relation relation, const Value& left, const Value& right) {
  switch (relation) {
    case Relation::equal:
      return equal(machine_.meter, left, right);
    case Relation::unequal:
      return !equal(machine_.meter, left, right);
    case Relation::less:
      return less(machine_.meter, left, right);
    case Relation::greater:
      return less(machine_.meter, right, left);
    case Relation::less_equal:
      return at_most(machine_.meter, left, right);
    case Relation::greater_equal:
      return at_most(machine_.meter, right, left);
    case Relation::in:
      return contains(machine_.meter, right, left);
    case Relation::not_in:
      return !contains(machine_.meter, right, left);
  }
  return false;
}

Value Interpreter::evaluate(const ComparisonForm& form) {
  const int line = line_;
  Value left = evaluate(*form.first);
  for (const auto& [relation, expression] : form.rest) {
    Value right = evaluate(*expression);
    line_ = line;
    if (!holds(relation, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate(const JoinForm& form) {
  std::string result;
  for (const ExpressionPtr& part : form.parts) {
    result += show(machine_.meter, evaluate(*part));
    machine_.meter.check_bytes(result.size());
  }
  return machine_.text(std::move(result));
}

Value Interpreter::evaluate(const ChoiceForm& form) {
  if (truth(evaluate(*form.condition))) return evaluate(*form.then);
  if (form.otherwise) return evaluate(*form.otherwise);
  return Value::undefined(machine_.meter, "the inline if has no else, and its condition is false");
}

}  // namespace quire::text::jinja
