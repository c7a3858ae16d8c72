// Values with an identity: namespaces, loops, macros, functions; and the machine that owns them while a template is
// rendered.
#pragma once
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace quire::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// How a built-in function reads its arguments: by its parameters' names, of which the first `required` must be given.
//
// Errors   CheckError naming the function and the argument that is missing, unknown or too many.
class Bound {
 public:
  Bound(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> names,
        size_t required = 0);

  const Value* given(size_t parameter) const { return values_[parameter]; }  // null: left out
  const Value& operator[](size_t parameter) const { return *values_[parameter]; }
  Value value_or(size_t parameter, const Value& otherwise) const;
  bool flag(size_t parameter, bool otherwise) const;  // by truth
  // Throw when the argument has another type. None counts as left out.
  Integer integer(size_t parameter, Integer otherwise) const;
  std::string text(size_t parameter, std::string_view otherwise) const;

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

class Object {
 public:
  virtual ~Object() = default;
  virtual std::string_view type() const = 0;
  virtual std::string shown() const { return cat("<", type(), ">"); }
  virtual Value attribute(Machine& machine, std::string_view name);  // undefined unless overridden
  virtual bool callable() const { return false; }
  virtual Value call(Machine& machine, const Arguments& arguments);  // throws unless overridden
};

struct Machine {
  Meter meter;
  std::optional<std::tm> now;  // what strftime_now says; none: the clock's local time
  std::vector<std::unique_ptr<Object>> objects;
  Meter::Hold objects_hold{meter, 0};

  Machine(const TemplateLimits& limits, const std::optional<std::tm>& time) : meter(limits), now(time) {}

  template <class T, class... Parts>
  T& make(Parts&&... parts) {
    objects_hold.grow(sizeof(T) + 64);
    objects.push_back(std::make_unique<T>(std::forward<Parts>(parts)...));
    return static_cast<T&>(*objects.back());
  }

  Value text(std::string bytes, bool markup = false) { return make_text(meter, std::move(bytes), markup); }
  Value list(std::vector<Value> elements) { return make_sequence(meter, SequenceKind::list, std::move(elements)); }
  Value iterator(std::vector<Value> elements) {
    return make_sequence(meter, SequenceKind::iterator, std::move(elements));
  }
};

// Methods, macros and functions; throws for anything else.
Value call(Machine& machine, const Value& callee, const Arguments& arguments);
bool callable(const Value& value);

// namespace(...): the one thing that `set` can change.
class Namespace : public Object {
 public:
  std::string_view type() const override { return "Namespace"; }
  Value attribute(Machine& machine, std::string_view name) override;
  void set(Machine& machine, std::string_view name, const Value& value);  // names that begin with _ are refused

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

}  // namespace quire::text::jinja
