// The values that a template computes with: Python's, as far as templates see them.
//
// Values never change once made, except namespaces and the position of an iterator, so copies share their contents.
// Strings, lists and dicts are counted by the meter of their rendering and must not outlive it; constants of the
// template itself (`constant_text`) are counted nowhere. What can refer to itself (namespaces, macros, loops) is an
// Object, owned by the rendering: values only point to it, so there are no cycles of owners and no deep destruction.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/limits.h"

namespace quire::jinja {

using Integer = __int128;  // holds every integer of 64 bits, signed or not, and sums of them

class Dict;
class Object;    // builtins.h
struct Builtin;  // builtins.h
struct Method;
struct Sequence;
struct Text;

struct None {};
// What a missing name or attribute gives. It prints as nothing and is false; what else one does with it fails with
// this explanation.
struct Explanation {
  std::string why;
  Meter::Hold hold;
};
struct Undefined {
  std::shared_ptr<const Explanation> explanation;
};

class Value {
 public:
  using Form =
      std::variant<None, Undefined, bool, Integer, double, std::shared_ptr<const Text>, std::shared_ptr<Sequence>,
                   std::shared_ptr<const Dict>, std::shared_ptr<const Method>, Object*>;

  Value() = default;  // none
  Value(Form form) : form_(std::move(form)) {}
  static Value undefined(Meter& meter, std::string why);
  static Value boolean(bool value) { return Form(std::in_place_type<bool>, value); }
  static Value integer(Integer value) { return Form(std::in_place_type<Integer>, value); }
  static Value real(double value) { return Form(std::in_place_type<double>, value); }
  static Value object(Object* value) { return Form(std::in_place_type<Object*>, value); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(form_); }
  bool is_none() const { return std::holds_alternative<None>(form_); }
  // The following are null when the value is of another kind. Booleans are integers too, as in Python.
  const bool* boolean() const { return std::get_if<bool>(&form_); }
  std::optional<Integer> integer() const;
  const double* real() const { return std::get_if<double>(&form_); }
  std::optional<double> number() const;
  const Text* text() const { return shared<const Text>(); }
  Sequence* sequence() const { return shared<Sequence>(); }
  const Dict* dict() const { return shared<const Dict>(); }
  const Method* method() const { return shared<const Method>(); }
  Object* object() const;

  int depth() const;              // 0, or for lists and dicts 1 + that of the deepest element
  bool hashable() const;          // may be a key of a dict
  std::string_view type() const;  // Python's name of the type
  void check_defined() const;     // throws what an undefined value explains

 private:
  template <class T>
  T* shared() const {
    const auto* pointer = std::get_if<std::shared_ptr<T>>(&form_);
    return pointer ? pointer->get() : nullptr;
  }

  Form form_;
};

struct Text {
  std::string bytes;  // UTF-8
  bool markup;        // result of `safe`: what is joined to it by + is escaped
  size_t code_points;
  Meter::Hold hold;

  bool ascii() const { return code_points == bytes.size(); }  // code points are bytes
};

struct Sequence {
  enum class Kind : uint8_t {
    list,
    tuple,
    range,
    view,      // dict.keys() and so on: has a length but no subscripts
    iterator,  // what map, select, ... give: can be walked once, always true, without a length
  };
  Kind kind;
  std::vector<Value> elements;
  int depth;
  bool hashable;  // a tuple of what can be hashed
  Meter::Hold hold;
  size_t next = 0;  // iterator: elements before this one are gone

  bool indexed() const { return kind <= Kind::range; }
};

// In order of insertion. Setting a key again keeps its place.
class Dict {
 public:
  explicit Dict(Meter& meter) : meter_(meter), hold_(meter, 0) {}

  void set(const Value& key, const Value& value);  // while it is being made; throws for keys that cannot be hashed
  const Value* find(const Value& key) const;       // null: not there
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  int depth() const { return depth_; }

 private:
  std::optional<size_t> position(const Value& key) const;
  std::optional<size_t> position(std::string_view key) const;

  Meter& meter_;
  Meter::Hold hold_;
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string_view, size_t> index_;  // of keys that are strings, once there are many
  int depth_ = 1;
};

// A function: a global one, or a method taken from a value, as in `x.strip`.
struct Method {
  Value self;  // of a global one: none
  const Builtin* builtin;
  Meter::Hold hold;
};

Value constant_text(std::string bytes);
Value make_text(Meter& meter, std::string bytes, bool markup = false);
Value make_sequence(Meter& meter, Sequence::Kind kind, std::vector<Value> elements);
Value make_dict(std::shared_ptr<const Dict> dict);
Value make_method(Meter& meter, const Value& self, const Builtin* builtin);

}  // namespace quire::jinja
