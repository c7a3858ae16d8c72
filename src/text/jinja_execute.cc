#include <utility>

#include "text/jinja_compare.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_loop.h"
#include "text/jinja_macro.h"
#include "text/jinja_show.h"

namespace quire::text::jinja {

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const Statement& statement : body) {
    machine_.meter.step();
    line_ = statement.line;
    const Meter::Level level(machine_.meter);
    const Flow flow = std::visit([this](const auto& form) { return execute(form); }, statement.form);
    if (flow != Flow::onwards) return flow;
  }
  return Flow::onwards;
}

void Interpreter::write(std::string_view text) {
  const size_t most = machine_.meter.limits().output_bytes;
  check(text.size() <= most - output_->text.size(), "more than ", most, " bytes of output (limit: output_bytes)");
  machine_.meter.work_on_bytes(text.size());
  output_->hold.grow(text.size());
  output_->text += text;
}

Interpreter::Flow Interpreter::execute(const DataStatement& statement) {
  write(statement.text);
  return Flow::onwards;
}

Interpreter::Flow Interpreter::execute(const PrintStatement& statement) {
  const Value value = evaluate(*statement.value);
  if (const Text* text = value.text())
    write(text->bytes);
  else
    write(show(machine_.meter, value));
  return Flow::onwards;
}

Interpreter::Flow Interpreter::execute(const IfStatement& statement) {
  for (const auto& [condition, body] : statement.branches)
    if (truth(evaluate(*condition))) return execute(body);
  return execute(statement.otherwise);
}

Interpreter::Flow Interpreter::execute(const ForStatement& statement) {
  std::vector<Value> elements = elements_of(machine_.meter, evaluate(*statement.iterable));
  Loop::Condition condition;
  if (statement.condition)
    condition = [this, &statement, home = scope_](const Value& element) {
      const Inside inside(*this, home);
      assign(statement.target, element);
      return truth(evaluate(*statement.condition));
    };
  auto& loop = machine_.make<Loop>(machine_.meter, std::move(elements), std::move(condition));
  const Flow flow = run_turns(statement, loop);
  loop.finish();
  return flow;
}

Interpreter::Flow Interpreter::run_turns(const ForStatement& statement, Loop& loop) {
  bool any = false;
  while (const Value* element = loop.next()) {
    any = true;
    machine_.meter.step();
    const Inside inside(*this);
    scope_->set(kLoop, Value::object(&loop));
    assign(statement.target, *element);
    if (execute(statement.body) == Flow::end_loop) break;
  }
  return any ? Flow::onwards : execute(statement.otherwise);
}

Interpreter::Flow Interpreter::execute(const SetStatement& statement) {
  assign(statement.target, evaluate(*statement.value));
  return Flow::onwards;
}

// The text that the body writes, in a scope of its own.
Value Interpreter::captured(const Body& body, Flow& flow) {
  const Inside inside(*this);
  Output output{"", Meter::Hold(machine_.meter, 0)};
  Output* before = std::exchange(output_, &output);
  flow = execute(body);
  output_ = before;
  return machine_.text(std::move(output.text));
}

Value Interpreter::filtered(const Expression& filter, const Value& text) {
  const Value* before = std::exchange(block_text_, &text);
  const Value result = evaluate(filter);
  block_text_ = before;
  return result;
}

Interpreter::Flow Interpreter::execute(const SetBlockStatement& statement) {
  Flow flow;
  Value text = captured(statement.body, flow);
  if (flow != Flow::onwards) return flow;
  if (statement.filter) text = filtered(*statement.filter, text);
  assign(statement.target, text);
  return Flow::onwards;
}

Interpreter::Flow Interpreter::execute(const FilterStatement& statement) {
  Flow flow;
  const Value text = captured(statement.body, flow);
  if (flow != Flow::onwards) return flow;
  write(show(machine_.meter, filtered(*statement.filter, text)));
  return Flow::onwards;
}

Value Interpreter::make_macro(const MacroDefinition& definition) {
  scope_->keep();
  return Value::object(&machine_.make<Macro>(*this, definition, scope_));
}

Interpreter::Flow Interpreter::execute(const MacroStatement& statement) {
  scope_->set(statement.symbol, make_macro(*statement.macro));
  return Flow::onwards;
}

Interpreter::Flow Interpreter::execute(const CallStatement& statement) {
  const auto& form = std::get<CallForm>(statement.call->form);
  const Value callee = evaluate(*form.callee);
  Arguments given = arguments(form.arguments);
  given.named.emplace_back("caller", make_macro(*statement.caller));
  write(show(machine_.meter, call(machine_, callee, given)));
  return Flow::onwards;
}

Interpreter::Flow Interpreter::execute(const WithStatement& statement) {
  std::vector<Value> values;  // all are evaluated outside
  for (const auto& [target, value] : statement.values) values.push_back(evaluate(*value));
  const Inside inside(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(statement.values[i].first, values[i]);
  return execute(statement.body);
}

Interpreter::Flow Interpreter::execute(const ScopeStatement& statement) {
  const Inside inside(*this);
  return execute(statement.body);
}

void Interpreter::assign(const Target& target, const Value& value) {
  line_ = target.line;
  if (!target.parts.empty()) {
    const std::vector<Value> elements = elements_of(machine_.meter, value);
    check(elements.size() == target.parts.size(), elements.size(), " values cannot be assigned to ",
          target.parts.size(), " names");
    for (size_t i = 0; i < elements.size(); ++i) assign(target.parts[i], elements[i]);
  } else if (target.attribute.empty()) {
    scope_->set(target.symbol, value);
  } else {
    const Value owner = evaluate(NameForm{target.symbol});
    auto* attributes = dynamic_cast<Namespace*>(owner.object());
    check(attributes, "'", tree_.symbols[static_cast<size_t>(target.symbol)],
          "' is no namespace: its attributes cannot be set");
    attributes->set(machine_, target.attribute, value);
  }
}

}  // namespace quire::text::jinja
