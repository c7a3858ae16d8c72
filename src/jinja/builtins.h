// What templates find ready: filters behind `|`, tests behind `is`, methods behind `.`, global functions; and what a
// rendering is made of while they run.
//
//   filters  capitalize count d default dictsort first float format indent int items join last length list lower map
//   max
//            min reject rejectattr replace reverse safe select selectattr sort string title tojson trim unique upper
//   tests    boolean defined even false float integer iterable mapping none number odd sequence string true undefined
//            eq == equalto ne != lt < le <= gt > ge >= in
//   str      capitalize endswith find format isdigit join lower lstrip removeprefix removesuffix replace rfind rsplit
//            rstrip split splitlines startswith strip title upper
//   dict     copy get items keys values
//   list     count index
//   globals  dict namespace raise_exception range strftime_now
//
// That is what the chat templates of some hundred models use, and its nearest neighbours. Nothing here changes a value
// or leads out of the data. map, select, reject, selectattr, rejectattr, unique, items and reverse give iterators, as
// in Jinja: walked once, true even when empty, without a length until `list` makes one.
//
// Errors   CheckError naming the function and the argument that is missing, unknown, too many or of the wrong type.
#pragma once
#include <array>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/strings.h"
#include "jinja/value.h"

namespace quire::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// One rendering's state that outlives statements.
struct Runtime {
  Meter meter;
  std::optional<std::tm> now;  // what strftime_now prints; none: the clock's local time
  std::vector<std::unique_ptr<Object>> objects;
  Meter::Hold objects_hold{meter, 0};

  Runtime(const Limits& limits, const std::optional<std::tm>& time) : meter(limits), now(time) {}

  template <class T, class... Parts>
  T& make(Parts&&... parts) {
    objects_hold.grow(sizeof(T) + 64);
    objects.push_back(std::make_unique<T>(std::forward<Parts>(parts)...));
    return static_cast<T&>(*objects.back());
  }

  Value text(std::string bytes) { return make_text(meter, std::move(bytes)); }
  Value text(std::string_view bytes) { return text(std::string(bytes)); }
  Value list(std::vector<Value> elements) { return sequence(Sequence::Kind::list, std::move(elements)); }
  Value tuple(std::vector<Value> elements) { return sequence(Sequence::Kind::tuple, std::move(elements)); }
  Value iterator(std::vector<Value> elements) { return sequence(Sequence::Kind::iterator, std::move(elements)); }
  Value sequence(Sequence::Kind kind, std::vector<Value> elements) {
    return make_sequence(meter, kind, std::move(elements));
  }
};

// A value with an identity.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string_view type() const = 0;
  virtual Value attribute(Runtime& runtime, std::string_view name);  // undefined unless overridden
  virtual Value call(Runtime& runtime, const Arguments& arguments);  // throws unless overridden
};

// namespace(...): the one thing that `set` can change.
class Namespace : public Object {
 public:
  std::string_view type() const override { return "Namespace"; }
  Value attribute(Runtime& runtime, std::string_view name) override;
  void set(Runtime& runtime, std::string_view name, const Value& value);  // names that begin with _ are refused

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

// Given arguments by a function's parameters.
class Bound {
 public:
  Bound(const Builtin& builtin, const Arguments& arguments);

  const Arguments& all() const { return arguments_; }
  bool given(size_t parameter) const { return values_[parameter] && !values_[parameter]->is_none(); }
  const Value& operator[](size_t parameter) const { return *values_[parameter]; }
  const Value& value_or(size_t parameter, const Value& otherwise) const {
    return values_[parameter] ? *values_[parameter] : otherwise;
  }
  bool flag(size_t parameter) const;  // by truth; left out: false
  // Throw when the argument has another type. None counts as left out.
  Integer integer(size_t parameter, Integer otherwise) const;
  std::string_view text(size_t parameter, std::string_view otherwise = "") const;

 private:
  const Builtin& builtin_;
  const Arguments& arguments_;
  std::array<const Value*, 4> values_{};
};

struct Builtin {
  using Function = Value(Runtime&, const Value& self, const Bound&);
  static constexpr int kReadsAll = -1;  // as `required`: the function looks at Bound::all() itself

  std::string_view name;
  Function* function;
  std::array<std::string_view, 4> parameters = {};  // names, up to the first that is empty
  int required = 0;                                 // how many of them must be given

  Value call(Runtime& runtime, const Value& self, const Arguments& arguments) const {
    return function(runtime, self, Bound(*this, arguments));
  }
};

// Null: there is none.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
const Builtin* find_method(const Value& value, std::string_view name);

// Whether Python's type has a method of this name that templates cannot use. Such a name hides an entry of a dict, as
// it does there.
bool refused_method(const Value& value, std::string_view name);

// Methods, macros and functions; throws for anything else.
Value call(Runtime& runtime, const Value& callee, const Arguments& arguments);

// Shared by filters and methods of the same name, or nearly.
// Without the code points of the first argument at its ends; without an argument, whitespace.
Value strip_ends(Runtime& runtime, std::string_view text, Side side, const Bound& bound);
Value replace_parts(Runtime& runtime, std::string_view text, std::string_view old, std::string_view with, Integer most);
Value format_percent(Runtime& runtime, std::string_view format, const Value& values);  // "%s %d" % values

}  // namespace quire::jinja
