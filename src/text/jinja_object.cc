#include "text/jinja_object.h"

#include <algorithm>

#include "base/check.h"
#include "text/jinja_compare.h"
#include "text/jinja_show.h"

namespace quire::text::jinja {

Bound::Bound(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> names,
             size_t required)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  check(arguments.positional.size() <= names_.size(), function, " takes at most ", names_.size(), " arguments, got ",
        arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    check(found != names_.end(), function, " has no parameter '", name, "'");
    const Value*& place = values_[found - names_.begin()];
    check(!place, function, " got '", name, "' twice");
    place = &value;
  }
  for (size_t i = 0; i < required; ++i) check(values_[i], function, " needs '", names_[i], "'");
}

Value Bound::value_or(size_t parameter, const Value& otherwise) const {
  return values_[parameter] ? *values_[parameter] : otherwise;
}

bool Bound::flag(size_t parameter, bool otherwise) const {
  return values_[parameter] ? truth(*values_[parameter]) : otherwise;
}

Integer Bound::integer(size_t parameter, Integer otherwise) const {
  if (!values_[parameter] || values_[parameter]->is_none()) return otherwise;
  const Value& value = *values_[parameter];
  value.check_defined();
  const auto integer = value.integer();
  check(integer.has_value(), function_, ": '", names_[parameter], "' must be an integer, not ", value.type());
  return *integer;
}

std::string Bound::text(size_t parameter, std::string_view otherwise) const {
  if (!values_[parameter] || values_[parameter]->is_none()) return std::string(otherwise);
  const Value& value = *values_[parameter];
  value.check_defined();
  check(value.text(), function_, ": '", names_[parameter], "' must be a string, not ", value.type());
  return value.text()->bytes;
}

Value Object::attribute(Machine& machine, std::string_view name) {
  return Value::undefined(machine.meter, cat("'", type(), "' has no attribute '", name, "'"));
}

Value Object::call(Machine&, const Arguments&) { throw CheckError(cat("a ", type(), " cannot be called")); }

Value call(Machine& machine, const Value& callee, const Arguments& arguments) {
  callee.check_defined();
  if (const Method* method = callee.method()) return method->function(machine, method->self, arguments);
  check(callee.object(), "a ", callee.type(), " cannot be called");
  return callee.object()->call(machine, arguments);
}

bool callable(const Value& value) {
  return value.is_undefined() || value.method() || (value.object() && value.object()->callable());
}

Value Namespace::attribute(Machine& machine, std::string_view name) {
  machine.meter.step(attributes_.size() / 8);
  for (const auto& [key, value] : attributes_)
    if (key == name) return value;
  return Object::attribute(machine, name);
}

void Namespace::set(Machine& machine, std::string_view name, const Value& value) {
  check(!name.starts_with('_'), "a namespace's attribute must not begin with an underscore: '", name, "'");
  machine.meter.step(attributes_.size() / 8);
  for (auto& [key, old] : attributes_)
    if (key == name) {
      old = value;
      return;
    }
  machine.objects_hold.grow(sizeof(attributes_[0]) + name.size());
  attributes_.emplace_back(name, value);
}

}  // namespace quire::text::jinja
