// Runs a parsed template.
//
// Scopes are Jinja's: `for`, `macro` and blocks that are captured have names of their own, `if` has not; every
// iteration of a loop starts anew. A name is looked for in the scopes, then in the context, then among the globals.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "jinja/print.h"
#include "jinja/syntax.h"
#include "jinja/template.h"

namespace quire::jinja {
namespace {

// Where names live: a chain of scopes, innermost first. A macro keeps the scopes that it was defined in; they live to
// the end of the rendering. All others go with the statement that opened them.
class Scope {
 public:
  Scope(Meter& meter, Scope* parent) : meter_(meter), parent_(parent), hold_(meter, sizeof(Scope)) {}

  const Value* find(Symbol symbol) const {
    size_t walked = 0;
    const Value* found = nullptr;
    for (const Scope* scope = this; scope && !found; scope = scope->parent_) {
      const auto& values = scope->values_;
      const auto at = std::find_if(values.begin(), values.end(), [&](auto& entry) { return entry.first == symbol; });
      walked += static_cast<size_t>(at - values.begin());
      if (at != values.end()) found = &at->second;
    }
    meter_.walk(walked);
    return found;
  }

  void set(Symbol symbol, const Value& value) {
    meter_.walk(values_.size());
    for (auto& [name, old] : values_)
      if (name == symbol) {
        old = value;
        return;
      }
    hold_.grow(sizeof values_[0]);
    values_.emplace_back(symbol, value);
  }

  // From now on a macro looks in here.
  void keep() {
    for (Scope* scope = this; scope && !scope->kept_; scope = scope->parent_) scope->kept_ = true;
  }
  bool kept() const { return kept_; }

 private:
  Meter& meter_;
  Scope* parent_;
  Meter::Hold hold_;
  std::vector<std::pair<Symbol, Value>> values_;
  bool kept_ = false;
};

// The `loop` of a for statement: walks the elements, one ahead at most, so that the statement's own condition is asked
// as late as Jinja asks it. The condition is the template's code: it may find this very loop in a namespace, but what
// walks on cannot be asked of a loop that is walking.
class Loop : public Object {
 public:
  using Condition = std::function<bool(const Value&)>;  // may be empty
  Loop(Meter& meter, std::vector<Value> elements, Condition accepts)
      : elements_(std::move(elements)), hold_(meter, elements_.size() * sizeof(Value)), accepts_(std::move(accepts)) {}

  // Null: there is no more.
  const Value* next() {
    std::optional<Value> element = ahead_ ? std::move(ahead_) : fetch();
    ahead_.reset();
    if (!element) return nullptr;
    ++index0_;
    before_ = std::move(current_);
    current_ = std::move(element);
    return &*current_;
  }

  // The statement has ended: what its condition refers to is gone, and the elements may go.
  void finish() {
    if (!accepts_) length();
    accepts_ = nullptr;
    elements_ = {};
    hold_ = {};
    fetched_ = 0;
  }

  std::string_view type() const override { return "LoopContext"; }
  Value attribute(Runtime& runtime, std::string_view name) override {
    if (name == "index") return Value::integer(index0_ + 1);
    if (name == "index0") return Value::integer(index0_);
    if (name == "first") return Value::boolean(index0_ == 0);
    if (name == "last") return Value::boolean(!ahead());
    if (name == "length") return Value::integer(length());
    if (name == "revindex") return Value::integer(length() - index0_);
    if (name == "revindex0") return Value::integer(length() - index0_ - 1);
    if (name == "previtem") return before_ ? *before_ : Value::undefined(runtime.meter, "there is no previous item");
    if (name == "nextitem") return ahead() ? *ahead() : Value::undefined(runtime.meter, "there is no next item");
    return Object::attribute(runtime, name);
  }

 private:
  // While it lives the condition is being asked.
  class Asking {
   public:
    explicit Asking(Loop& loop) : loop_(loop) {
      check(!loop.asking_, "a loop is asked by its own condition");
      loop.asking_ = true;
    }
    ~Asking() { loop_.asking_ = false; }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

   private:
    Loop& loop_;
  };

  std::optional<Value> fetch() {
    const Asking asking(*this);
    while (fetched_ < elements_.size()) {
      Value element = elements_[fetched_++];
      if (!accepts_ || accepts_(element)) return element;
    }
    return std::nullopt;
  }

  const std::optional<Value>& ahead() {
    if (!ahead_) ahead_ = fetch();
    return ahead_;
  }

  // With a condition, only asking it for all the rest tells.
  Integer length() {
    if (length_) return *length_;
    std::vector<Value> rest;
    while (std::optional<Value> element = fetch()) rest.push_back(std::move(*element));
    length_ = static_cast<Integer>(rest.size()) + index0_ + 1 + (ahead_ ? 1 : 0);
    elements_ = std::move(rest);
    accepts_ = nullptr;
    fetched_ = 0;
    return *length_;
  }

  std::vector<Value> elements_;
  Meter::Hold hold_;
  Condition accepts_;
  bool asking_ = false;
  size_t fetched_ = 0;
  std::optional<Integer> length_;
  Integer index0_ = -1;
  std::optional<Value> before_, current_, ahead_;
};

class Interpreter {
 public:
  Interpreter(const Tree& tree, const Limits& limits, const std::optional<std::tm>& now)
      : tree_(tree), runtime_(limits, now), globals_(tree.symbols.size()), root_(runtime_.meter, nullptr) {}

  // Once. Throws RenderError with the line of the statement or expression that failed.
  std::string run(const nlohmann::ordered_json& context) {
    check(context.is_object(), "chat template: the context: it must be an object");
    load(context);
    Output output{"", Meter::Hold(runtime_.meter, 0)};
    output_ = &output;
    try {
      execute(tree_.body);
    } catch (const CheckError& error) {
      throw RenderError(cat("chat template, line ", line_, ": ", error.what()));
    }
    return std::move(output.text);
  }

 private:
  enum class Flow { normal, breaks, continues };

  // Text being written, by the template or by a block that is captured.
  struct Output {
    std::string text;
    Meter::Hold hold;
  };

  // A new scope for as long as it lives, then the one before.
  class Inside {
   public:
    Inside(Interpreter& interpreter, Scope* parent)
        : interpreter_(interpreter),
          before_(interpreter.scope_),
          scope_(std::make_unique<Scope>(interpreter.runtime_.meter, parent)) {
      interpreter.scope_ = scope_.get();
    }
    ~Inside() {
      interpreter_.scope_ = before_;
      if (scope_->kept()) interpreter_.kept_scopes_.push_back(std::move(scope_));
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Interpreter& interpreter_;
    Scope* before_;
    std::unique_ptr<Scope> scope_;
  };

  // A macro, or the body of a call block, as a value that can be called.
  class Macro : public Object {
   public:
    Macro(Interpreter& interpreter, const MacroDefinition& definition, Scope* home)
        : interpreter_(interpreter), definition_(definition), home_(home) {}

    std::string_view type() const override { return "Macro"; }
    Value call(Runtime& runtime, const Arguments& arguments) override {
      const Meter::Level level(runtime.meter);
      const Inside inside(interpreter_, home_);
      check_arguments(arguments);
      for (size_t i = 0; i < definition_.parameters.size(); ++i)
        interpreter_.scope_->set(definition_.parameters[i].symbol, argument(runtime, i, arguments));
      if (const Value* caller = named(arguments, "caller")) interpreter_.scope_->set(kCaller, *caller);
      Flow flow;
      return interpreter_.captured(definition_.body, flow);
    }

   private:
    static const Value* named(const Arguments& arguments, std::string_view name) {
      for (const auto& [given, value] : arguments.named)
        if (given == name) return &value;
      return nullptr;
    }

    void check_arguments(const Arguments& arguments) const {
      const auto& parameters = definition_.parameters;
      const size_t placed = arguments.positional.size();
      interpreter_.runtime_.meter.walk(2 * parameters.size() * arguments.named.size());
      check(placed <= parameters.size(), "the macro '", definition_.name, "' takes at most ", parameters.size(),
            " arguments");
      for (const auto& argument : arguments.named) {
        const auto takes = [&](const Parameter& parameter) { return parameter.name == argument.first; };
        const bool known =
            argument.first == "caller" ||
            std::any_of(parameters.begin() + static_cast<std::ptrdiff_t>(placed), parameters.end(), takes);
        check(known, "the macro '", definition_.name, "' has no parameter '", argument.first, "'");
      }
    }

    Value argument(Runtime& runtime, size_t i, const Arguments& arguments) const {
      const Parameter& parameter = definition_.parameters[i];
      if (i < arguments.positional.size()) return arguments.positional[i];
      if (const Value* value = named(arguments, parameter.name)) return *value;
      if (parameter.otherwise) return interpreter_.evaluate(*parameter.otherwise);
      return Value::undefined(runtime.meter, cat("parameter '", parameter.name, "' was not provided"));
    }

    Interpreter& interpreter_;
    const MacroDefinition& definition_;
    Scope* home_;
  };

  // Of the context, only what the template names.
  void load(const nlohmann::ordered_json& context) try {
    for (size_t symbol = 0; symbol < tree_.symbols.size(); ++symbol) {
      const auto given = context.find(tree_.symbols[symbol]);
      if (given != context.end())
        globals_[symbol] = from_json(runtime_.meter, *given);
      else if (const Builtin* global = find_global(tree_.symbols[symbol]))
        globals_[symbol] = make_method(runtime_.meter, Value(), global);
    }
  } catch (const CheckError& error) {
    throw RenderError(cat("chat template: the context: ", error.what()));
  }

  // ---- statements

  Flow execute(const Body& body) {
    for (const Statement& statement : body) {
      runtime_.meter.step();
      line_ = statement.line;
      const Meter::Level level(runtime_.meter);
      const Flow flow = std::visit([this](const auto& form) { return execute(form); }, statement.form);
      if (flow != Flow::normal) return flow;
    }
    return Flow::normal;
  }

  void write(std::string_view text) {
    runtime_.meter.check_output(output_->text.size() + text.size());
    runtime_.meter.work_on_bytes(text.size());
    output_->hold.grow(text.size());
    output_->text += text;
  }

  void print(const Value& value) {
    if (const Text* text = value.text())
      write(text->bytes);
    else
      write(str(runtime_.meter, value));
  }

  Flow execute(const DataStatement& statement) {
    write(statement.text);
    return Flow::normal;
  }

  Flow execute(const PrintStatement& statement) {
    print(evaluate(*statement.value));
    return Flow::normal;
  }

  Flow execute(const IfStatement& statement) {
    for (const auto& [condition, body] : statement.branches)
      if (truth(evaluate(*condition))) return execute(body);
    return execute(statement.otherwise);
  }

  Flow execute(const ForStatement& statement) {
    std::vector<Value> elements = elements_of(runtime_.meter, evaluate(*statement.iterable));
    Loop::Condition condition;
    if (statement.condition)
      condition = [this, &statement, home = scope_](const Value& element) {
        const Inside inside(*this, home);
        assign(statement.target, element);
        return truth(evaluate(*statement.condition));
      };
    auto& loop = runtime_.make<Loop>(runtime_.meter, std::move(elements), std::move(condition));
    bool any = false;
    while (const Value* element = loop.next()) {
      any = true;
      runtime_.meter.step();
      const Inside inside(*this, scope_);
      scope_->set(kLoop, Value::object(&loop));
      assign(statement.target, *element);
      if (execute(statement.body) == Flow::breaks) break;
    }
    const Flow flow = any ? Flow::normal : execute(statement.otherwise);
    loop.finish();
    return flow;
  }

  Flow execute(const SetStatement& statement) {
    assign(statement.target, evaluate(*statement.value));
    return Flow::normal;
  }

  // The text that the body writes, in a scope of its own.
  Value captured(const Body& body, Flow& flow) {
    const Inside inside(*this, scope_);
    Output output{"", Meter::Hold(runtime_.meter, 0)};
    Output* before = std::exchange(output_, &output);
    flow = execute(body);
    output_ = before;
    return runtime_.text(std::move(output.text));
  }

  Value filtered(const Expression& filter, const Value& text) {
    const Value* before = std::exchange(block_text_, &text);
    const Value result = evaluate(filter);
    block_text_ = before;
    return result;
  }

  Flow execute(const SetBlockStatement& statement) {
    Flow flow;
    const Value text = captured(statement.body, flow);
    if (flow == Flow::normal) assign(statement.target, statement.filter ? filtered(*statement.filter, text) : text);
    return flow;
  }

  Flow execute(const FilterStatement& statement) {
    Flow flow;
    const Value text = captured(statement.body, flow);
    if (flow == Flow::normal) print(filtered(*statement.filter, text));
    return flow;
  }

  Value make_macro(const MacroDefinition& definition) {
    scope_->keep();
    return Value::object(&runtime_.make<Macro>(*this, definition, scope_));
  }

  Flow execute(const MacroStatement& statement) {
    scope_->set(statement.symbol, make_macro(*statement.macro));
    return Flow::normal;
  }

  Flow execute(const CallStatement& statement) {
    const auto& form = std::get<CallForm>(statement.call->form);
    const Value callee = evaluate(*form.callee);
    Arguments given = arguments(form.arguments);
    given.named.emplace_back("caller", make_macro(*statement.caller));
    print(call(runtime_, callee, given));
    return Flow::normal;
  }

  Flow execute(const BreakStatement&) { return Flow::breaks; }
  Flow execute(const ContinueStatement&) { return Flow::continues; }

  Flow execute(const GenerationStatement& statement) {
    const Inside inside(*this, scope_);
    return execute(statement.body);
  }

  void assign(const Target& target, const Value& value) {
    line_ = target.line;
    if (!target.parts.empty()) {
      const std::vector<Value> elements = elements_of(runtime_.meter, value);
      check(elements.size() == target.parts.size(), elements.size(), " values cannot be assigned to ",
            target.parts.size(), " names");
      for (size_t i = 0; i < elements.size(); ++i) assign(target.parts[i], elements[i]);
    } else if (target.attribute.empty()) {
      scope_->set(target.symbol, value);
    } else {
      auto* attributes = dynamic_cast<Namespace*>(evaluate(NameForm{target.symbol}).object());
      check(attributes, "'", tree_.symbols[static_cast<size_t>(target.symbol)],
            "' is no namespace: its attributes cannot be set");
      attributes->set(runtime_, target.attribute, value);
    }
  }

  // ---- expressions

  Value evaluate(const Expression& expression) {
    runtime_.meter.step();
    const Meter::Level level(runtime_.meter);
    const int before = std::exchange(line_, expression.line);  // after a failure it stays
    Value value = std::visit([this](const auto& form) { return evaluate(form); }, expression.form);
    line_ = before;
    return value;
  }

  Value evaluate_or_none(const ExpressionPtr& expression) { return expression ? evaluate(*expression) : Value(); }

  Value evaluate(const ConstantForm& form) { return form.value; }

  Value evaluate(const NameForm& form) {
    if (const Value* value = scope_->find(form.symbol)) return *value;
    const auto symbol = static_cast<size_t>(form.symbol);
    if (globals_[symbol]) return *globals_[symbol];
    return Value::undefined(runtime_.meter, cat("'", tree_.symbols[symbol], "' is undefined"));
  }

  Value evaluate(const ListForm& form) {
    const Meter::Hold hold(runtime_.meter, form.elements.size() * sizeof(Value));  // while the rest is evaluated
    std::vector<Value> elements;
    elements.reserve(form.elements.size());
    for (const ExpressionPtr& element : form.elements) elements.push_back(evaluate(*element));
    return form.tuple ? runtime_.tuple(std::move(elements)) : runtime_.list(std::move(elements));
  }

  Value evaluate(const DictForm& form) {
    auto dict = std::make_shared<Dict>(runtime_.meter);
    for (const auto& [key, value] : form.entries) {
      const Value name = evaluate(*key);
      dict->set(name, evaluate(*value));
    }
    return make_dict(std::move(dict));
  }

  Value evaluate(const AttributeForm& form) { return attribute_of(runtime_, evaluate(*form.of), form.name); }

  Value evaluate(const SubscriptForm& form) {
    const Value value = evaluate(*form.of);
    return element_of(runtime_, value, evaluate(*form.key));
  }

  Value evaluate(const SliceForm& form) {
    const Value value = evaluate(*form.of), first = evaluate_or_none(form.first), last = evaluate_or_none(form.last);
    return slice_of(runtime_, value, first, last, evaluate_or_none(form.step));
  }

  Arguments arguments(const CallArguments& given) {
    const Meter::Hold hold(runtime_.meter, (given.positional.size() + given.named.size()) * sizeof(Value));
    Arguments result;
    for (const ExpressionPtr& value : given.positional) result.positional.push_back(evaluate(*value));
    for (const auto& [name, value] : given.named) result.named.emplace_back(name, evaluate(*value));
    if (given.more_positional)
      for (Value& value : elements_of(runtime_.meter, evaluate(*given.more_positional)))
        result.positional.push_back(std::move(value));
    return result;
  }

  Value evaluate(const CallForm& form) {
    const Value callee = evaluate(*form.callee);
    return call(runtime_, callee, arguments(form.arguments));
  }

  Value evaluate(const FilterForm& form) {
    check(form.builtin, "unknown ", form.kind, " '", form.name, "'");
    const Value input = form.of ? evaluate(*form.of) : *block_text_;
    return form.builtin->call(runtime_, input, arguments(form.arguments));
  }

  Value evaluate(const UnaryForm& form) { return form.op(evaluate(*form.operand)); }

  Value evaluate(const BinaryForm& form) {
    const Value left = evaluate(*form.left);
    return form.op(runtime_, left, evaluate(*form.right));
  }

  Value evaluate(const LogicForm& form) {
    Value left = evaluate(*form.left);
    return truth(left) == form.conjunction ? evaluate(*form.right) : left;
  }

  Value evaluate(const JoinForm& form) {
    Output result{"", Meter::Hold(runtime_.meter, 0)};
    for (const ExpressionPtr& part : form.parts) {
      const std::string text = str(runtime_.meter, evaluate(*part));
      runtime_.meter.check_bytes(result.text.size() + text.size());
      result.hold.grow(text.size());
      result.text += text;
    }
    return runtime_.text(std::move(result.text));
  }

  Value evaluate(const ChoiceForm& form) {
    if (truth(evaluate(*form.condition))) return evaluate(*form.then);
    if (form.otherwise) return evaluate(*form.otherwise);
    return Value::undefined(runtime_.meter, "the inline if has no else, and its condition is false");
  }

  const Tree& tree_;
  Runtime runtime_;
  std::vector<std::optional<Value>> globals_;  // by symbol: the context's, else a function
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  Scope root_;
  Scope* scope_ = &root_;
  Output* output_ = nullptr;
  const Value* block_text_ = nullptr;  // what a filter without an operand filters
  int line_ = 1;
};

}  // namespace

Template::Template(std::string_view source, const Limits& limits)
    : tree_(std::make_unique<Tree>(parse_template(source, limits))) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const nlohmann::ordered_json& context, const Limits& limits,
                             const std::optional<std::tm>& now) const {
  return Interpreter(*tree_, limits, now).run(context);
}

}  // namespace quire::jinja
