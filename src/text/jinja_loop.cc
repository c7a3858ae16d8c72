#include "text/jinja_loop.h"

#include "text/jinja_compare.h"

namespace quire::text::jinja {

Loop::Loop(Meter& meter, std::vector<Value> elements, Condition accepts)
    : elements_(std::move(elements)), hold_(meter, elements_.size() * sizeof(Value)), accepts_(std::move(accepts)) {}

void Loop::finish() {
  if (!accepts_) length();
  accepts_ = nullptr;
  elements_ = {};
  hold_ = {};
  fetched_ = 0;
}

std::optional<Value> Loop::fetch() {
  while (fetched_ < elements_.size()) {
    const Value& element = elements_[fetched_++];
    if (!accepts_ || accepts_(element)) return element;
  }
  return std::nullopt;
}

const std::optional<Value>& Loop::ahead() {
  if (!ahead_) ahead_ = fetch();
  return ahead_;
}

const Value* Loop::next() {
  std::optional<Value> element = ahead_ ? std::move(ahead_) : fetch();
  ahead_.reset();
  if (!element) return nullptr;
  ++index0_;
  before_ = std::move(current_);
  current_ = std::move(element);
  return &*current_;
}

// With a condition, only asking it for all the rest tells.
Integer Loop::length() {
  if (length_) return *length_;
  std::vector<Value> rest;
  while (std::optional<Value> element = fetch()) rest.push_back(std::move(*element));
  length_ = static_cast<Integer>(rest.size()) + index0_ + 1 + (ahead_ ? 1 : 0);
  elements_ = std::move(rest);
  accepts_ = nullptr;
  fetched_ = 0;
  return *length_;
}

Value Loop::attribute(Machine& machine, std::string_view name) {
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!ahead());
  if (name == "length") return Value::integer(length());
  if (name == "revindex") return Value::integer(length() - index0_);
  if (name == "revindex0") return Value::integer(length() - index0_ - 1);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return before_ ? *before_ : Value::undefined(machine.meter, "there is no previous item");
  if (name == "nextitem") return ahead() ? *ahead() : Value::undefined(machine.meter, "there is no next item");
  if (name == "cycle") return make_method(machine.meter, Value::object(this), "cycle", cycle);
  if (name == "changed") return make_method(machine.meter, Value::object(this), "changed", changed);
  return Object::attribute(machine, name);
}

Value Loop::cycle(Machine&, const Value& self, const Arguments& arguments) {
  const auto& loop = static_cast<const Loop&>(*self.object());
  check(!arguments.positional.empty(), "loop.cycle needs items");
  return arguments.positional[static_cast<size_t>(loop.index0_) % arguments.positional.size()];
}

Value Loop::changed(Machine& machine, const Value& self, const Arguments& arguments) {
  auto& loop = static_cast<Loop&>(*self.object());
  const Value value = make_sequence(machine.meter, SequenceKind::tuple, arguments.positional);
  if (loop.last_changed_ && equal(machine.meter, *loop.last_changed_, value)) return Value::boolean(false);
  loop.last_changed_ = value;
  return Value::boolean(true);
}

}  // namespace quire::text::jinja
