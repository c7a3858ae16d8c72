#include "text/jinja_interpreter.h"

#include <nlohmann/json.hpp>

#include "text/jinja_globals.h"
#include "text/jinja_json.h"
#include "text/refused.h"

namespace quire::text::jinja {

Interpreter::Interpreter(const Tree& tree, const TemplateLimits& limits, const std::optional<std::tm>& now)
    : tree_(tree), machine_(limits, now), globals_(tree.symbols.size()), root_(machine_.meter, nullptr) {}

// Of the context, only what the template names.
void Interpreter::load(const nlohmann::ordered_json& context) try {
  for (size_t symbol = 0; symbol < tree_.symbols.size(); ++symbol) {
    const auto given = context.find(tree_.symbols[symbol]);
    if (given != context.end())
      globals_[symbol] = from_json(machine_.meter, *given);
    else if (Object* global = find_global(tree_.symbols[symbol]))
      globals_[symbol] = Value::object(global);
  }
} catch (const CheckError& error) {
  throw Refused(cat("chat template: the context: ", error.what()));
}

std::string Interpreter::run(const nlohmann::ordered_json& context) {
  check(context.is_object(), "chat template: the context: it must be an object");
  load(context);
  Output output{"", Meter::Hold(machine_.meter, 0)};
  output_ = &output;
  try {
    execute(tree_.body);
  } catch (const CheckError& error) {
    throw Refused(cat("chat template, line ", line_, ": ", error.what()));
  }
  return std::move(output.text);
}

Interpreter::Inside::Inside(Interpreter& interpreter, Scope* parent)
    : interpreter_(interpreter),
      before_(interpreter.scope_),
      scope_(std::make_unique<Scope>(interpreter.machine_.meter, parent)) {
  interpreter.scope_ = scope_.get();
}

Interpreter::Inside::~Inside() {
  interpreter_.scope_ = before_;
  if (scope_->kept()) interpreter_.kept_scopes_.push_back(std::move(scope_));
}

}  // namespace quire::text::jinja
