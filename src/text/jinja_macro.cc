#include "text/jinja_macro.h"

#include <algorithm>

namespace quire::text::jinja {
namespace {

std::optional<Value> take_named(Arguments& arguments, std::string_view name) {
  for (auto at = arguments.named.begin(); at != arguments.named.end(); ++at) {
    if (at->first != name) continue;
    Value value = std::move(at->second);
    arguments.named.erase(at);
    return value;
  }
  return std::nullopt;
}

}  // namespace

Value Interpreter::Macro::call(Machine& machine, const Arguments& arguments) {
  const Meter::Level level(machine.meter);
  const Inside inside(interpreter_, home_);
  bind(machine, arguments);
  Flow flow;
  return interpreter_.captured(definition_.body, flow);
}

void Interpreter::Macro::bind(Machine& machine, Arguments rest) {
  const auto& parameters = definition_.parameters;
  const size_t placed = std::min(rest.positional.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::optional<Value> value = i < placed ? std::optional(rest.positional[i]) : take_named(rest, parameters[i].name);
    if (!value && parameters[i].otherwise) value = interpreter_.evaluate(*parameters[i].otherwise);
    if (!value) value = Value::undefined(machine.meter, cat("parameter '", parameters[i].name, "' was not provided"));
    interpreter_.scope_->set(parameters[i].symbol, *value);
  }
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(placed));
  bind_rest(machine, rest);
}

// caller, varargs and kwargs exist only where the body reads them; else such arguments are too many.
void Interpreter::Macro::bind_rest(Machine& machine, Arguments& rest) {
  if (definition_.reads_caller && !interpreter_.scope_->find_here(kCaller)) {
    const std::optional<Value> caller = take_named(rest, "caller");
    interpreter_.scope_->set(kCaller, caller ? *caller : Value::undefined(machine.meter, "there is no caller"));
  }
  if (definition_.reads_kwargs && !interpreter_.scope_->find_here(kKwargs)) {
    auto names = std::make_shared<Dict>(machine.meter);
    for (const auto& [name, value] : rest.named) names->set(machine.text(name), value);
    interpreter_.scope_->set(kKwargs, make_dict(std::move(names)));
  } else {
    check(rest.named.empty(), "the macro '", definition_.name, "' has no parameter '",
          rest.named.empty() ? "" : rest.named[0].first, "'");
  }
  if (definition_.reads_varargs && !interpreter_.scope_->find_here(kVarargs))
    interpreter_.scope_->set(kVarargs, make_sequence(machine.meter, SequenceKind::tuple, rest.positional));
  else
    check(rest.positional.empty(), "the macro '", definition_.name, "' takes at most ", definition_.parameters.size(),
          " arguments");
}

}  // namespace quire::text::jinja
