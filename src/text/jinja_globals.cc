#include "text/jinja_globals.h"

#include <algorithm>
#include <ctime>

#include "text/jinja_compare.h"
#include "text/jinja_show.h"

namespace quire::text::jinja {
namespace {

constexpr Integer kMostRange = 100'000;  // the sandbox of the original has the same
constexpr size_t kMostDateBytes = 4096;

// Holds no state, so all renderings share it.
class Function : public Object {
 public:
  using Body = Value(Machine&, const Arguments&);
  Function(std::string_view name, Body* body) : name_(name), body_(body) {}

  std::string_view name() const { return name_; }
  std::string_view type() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Machine& machine, const Arguments& arguments) override { return body_(machine, arguments); }

 private:
  std::string_view name_;
  Body* body_;
};

class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> values) : values_(std::move(values)) {}
  std::string_view type() const override { return "Cycler"; }
  Value attribute(Machine& machine, std::string_view name) override {
    if (name == "current") return values_[at_];
    if (name != "next" && name != "reset") return Object::attribute(machine, name);
    return make_method(machine.meter, Value::object(this), name == "next" ? "next" : "reset",
                       name == "next" ? next : reset);
  }

 private:
  static Value next(Machine&, const Value& self, const Arguments&) {
    auto& cycler = static_cast<Cycler&>(*self.object());
    const size_t at = cycler.at_;
    cycler.at_ = (at + 1) % cycler.values_.size();
    return cycler.values_[at];
  }
  static Value reset(Machine&, const Value& self, const Arguments&) {
    static_cast<Cycler&>(*self.object()).at_ = 0;
    return Value();
  }

  std::vector<Value> values_;
  size_t at_ = 0;
};

class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string_view type() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Machine& machine, const Arguments&) override {
    return std::exchange(used_, true) ? separator_ : machine.text("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value range(Machine& machine, const Arguments& arguments) {
  const Bound bound("range", arguments, {"start", "stop", "step"}, 1);
  const bool one = !bound.given(1);
  const Integer first = one ? 0 : bound.integer(0, 0), end = bound.integer(one ? 0 : 1, 0), step = bound.integer(2, 1);
  check(step != 0, "range: 'step' must not be zero");
  constexpr Integer kFar = Integer{1} << 100;  // sums below stay in 127 bits
  for (const Integer value : {first, end, step}) check(value > -kFar && value < kFar, "range: a number is too large");
  const Integer distance = step > 0 ? end - first : first - end, length = step > 0 ? step : -step;
  const Integer count = distance <= 0 ? 0 : (distance - 1) / length + 1;
  check(count <= kMostRange, "range: more than ", static_cast<int64_t>(kMostRange), " numbers");
  std::vector<Value> elements;
  for (Integer i = 0; i < count; ++i) elements.push_back(Value::integer(first + i * step));
  return make_sequence(machine.meter, SequenceKind::range, std::move(elements));
}

// The entries that dict(...) and namespace(...) are given: a dict or pairs, then names.
std::vector<std::pair<Value, Value>> given_entries(Machine& machine, std::string_view function,
                                                   const Arguments& arguments) {
  check(arguments.positional.size() <= 1, function, " takes at most one argument by place");
  std::vector<std::pair<Value, Value>> entries;
  if (!arguments.positional.empty() && arguments.positional[0].dict()) {
    entries = arguments.positional[0].dict()->entries();
  } else if (!arguments.positional.empty()) {
    for (const Value& element : elements_of(machine.meter, arguments.positional[0])) {
      const std::vector<Value> pair = elements_of(machine.meter, element);
      check(pair.size() == 2, function, " needs pairs");
      entries.emplace_back(pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(machine.text(name), value);
  return entries;
}

Value make_dict_value(Machine& machine, const Arguments& arguments) {
  auto dict = std::make_shared<Dict>(machine.meter);
  for (const auto& [key, value] : given_entries(machine, "dict", arguments)) dict->set(key, value);
  return make_dict(std::move(dict));
}

Value make_namespace(Machine& machine, const Arguments& arguments) {
  auto& result = machine.make<Namespace>();
  for (const auto& [key, value] : given_entries(machine, "namespace", arguments))
    result.set(machine, text_of(key, "namespace"), value);
  return Value::object(&result);
}

Value make_cycler(Machine& machine, const Arguments& arguments) {
  check(!arguments.positional.empty() && arguments.named.empty(), "cycler needs at least one item");
  return Value::object(&machine.make<Cycler>(arguments.positional));
}

Value make_joiner(Machine& machine, const Arguments& arguments) {
  const Bound bound("joiner", arguments, {"sep"});
  return Value::object(&machine.make<Joiner>(bound.value_or(0, constant_text(", "))));
}

Value raise_exception(Machine& machine, const Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"}, 1);
  throw CheckError(show(machine.meter, bound[0]));
}

std::tm local_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm result{};
  localtime_r(&now, &result);
  return result;
}

Value strftime_now(Machine& machine, const Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"}, 1);
  // An empty result and one that does not fit are told apart by a character of our own.
  const std::string format = text_of(bound[0], "strftime_now") + ".";
  check(format.find('\0') == std::string::npos, "strftime_now: the format holds a null character");
  if (!machine.now) machine.now = local_time_now();
  std::string buffer(kMostDateBytes, 0);
  const size_t bytes = std::strftime(buffer.data(), buffer.size(), format.c_str(), &*machine.now);
  check(bytes > 0, "strftime_now: the result has more than ", kMostDateBytes, " bytes");
  buffer.resize(bytes - 1);
  return machine.text(std::move(buffer));
}

}  // namespace

Object* find_global(std::string_view name) {
  static Function functions[] = {{"range", range},
                                 {"dict", make_dict_value},
                                 {"namespace", make_namespace},
                                 {"cycler", make_cycler},
                                 {"joiner", make_joiner},
                                 {"raise_exception", raise_exception},
                                 {"strftime_now", strftime_now}};
  for (Function& function : functions)
    if (function.name() == name) return &function;
  return nullptr;
}

}  // namespace quire::text::jinja
