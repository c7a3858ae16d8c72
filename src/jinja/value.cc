#include "jinja/value.h"

#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/operators.h"
#include "jinja/strings.h"

namespace quire::jinja {
namespace {

constexpr size_t kMostUnindexed = 8;  // up to here a walk is faster than a table
constexpr size_t kObjectBytes = 64;   // an allocation's own bytes, about

}  // namespace

Value Value::undefined(Meter& meter, std::string why) {
  meter.work_on_bytes(why.size());
  Meter::Hold hold(meter, why.size() + kObjectBytes);
  return Form(Undefined{std::make_shared<const Explanation>(Explanation{std::move(why), std::move(hold)})});
}

std::optional<Integer> Value::integer() const {
  if (const bool* flag = boolean()) return *flag ? 1 : 0;
  if (const Integer* value = std::get_if<Integer>(&form_)) return *value;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto value = integer()) return static_cast<double>(*value);
  if (const double* value = real()) return *value;
  return std::nullopt;
}

Object* Value::object() const {
  Object* const* object = std::get_if<Object*>(&form_);
  return object ? *object : nullptr;
}

int Value::depth() const {
  if (const Sequence* values = sequence()) return values->depth;
  if (const Dict* values = dict()) return values->depth();
  if (const Method* bound = method()) return 1 + bound->self.depth();
  return 0;
}

bool Value::hashable() const {
  if (const Sequence* values = sequence()) return values->hashable;
  return !dict();
}

std::string_view Value::type() const {
  static constexpr std::string_view kSequences[] = {"list", "tuple", "range", "dict view", "generator"};
  if (const Sequence* values = sequence()) return kSequences[static_cast<size_t>(values->kind)];
  if (Object* owned = object()) return owned->type();
  static constexpr std::string_view kNames[] = {"NoneType", "Undefined", "bool", "int",   "float",
                                                "str",      "",          "dict", "method"};
  return kNames[form_.index()];
}

void Value::check_defined() const {
  if (const Undefined* missing = std::get_if<Undefined>(&form_)) throw CheckError(missing->explanation->why);
}

void Dict::set(const Value& key, const Value& value) {
  meter_.step();
  check(key.hashable(), "a ", key.type(), " cannot be a key of a dict");
  depth_ = std::max({depth_, 1 + key.depth(), 1 + value.depth()});
  meter_.check_depth(depth_);
  if (const auto at = position(key)) {
    entries_[*at].second = value;
    return;
  }
  meter_.check_items(entries_.size() + 1);
  hold_.grow(2 * sizeof(Value) + kObjectBytes);
  entries_.emplace_back(key, value);
  if (entries_.size() <= kMostUnindexed) return;
  for (size_t at = index_.empty() ? 0 : entries_.size() - 1; at < entries_.size(); ++at)
    if (const Text* text = entries_[at].first.text()) index_.emplace(text->bytes, at);
}

std::optional<size_t> Dict::position(std::string_view key) const {
  meter_.work_on_bytes(key.size());
  if (entries_.size() > kMostUnindexed) {
    const auto found = index_.find(key);
    return found == index_.end() ? std::nullopt : std::optional(found->second);
  }
  for (size_t at = 0; at < entries_.size(); ++at)
    if (const Text* text = entries_[at].first.text(); text && text->bytes == key) return at;
  return std::nullopt;
}

std::optional<size_t> Dict::position(const Value& key) const {
  if (const Text* text = key.text()) return position(std::string_view(text->bytes));
  meter_.step(entries_.size());
  for (size_t at = 0; at < entries_.size(); ++at)
    if (!entries_[at].first.text() && equal(meter_, entries_[at].first, key)) return at;
  return std::nullopt;
}

const Value* Dict::find(const Value& key) const {
  const auto at = position(key);
  return at ? &entries_[*at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const auto at = position(key);
  return at ? &entries_[*at].second : nullptr;
}

Value constant_text(std::string bytes) {
  const size_t code_points = count_code_points(bytes);
  return Value::Form(std::make_shared<const Text>(Text{std::move(bytes), false, code_points, {}}));
}

Value make_text(Meter& meter, std::string bytes, bool markup) {
  meter.check_bytes(bytes.size());
  meter.work_on_bytes(bytes.size());
  Meter::Hold hold(meter, bytes.size() + kObjectBytes);
  const size_t code_points = count_code_points(bytes);
  return Value::Form(std::make_shared<const Text>(Text{std::move(bytes), markup, code_points, std::move(hold)}));
}

Value make_sequence(Meter& meter, Sequence::Kind kind, std::vector<Value> elements) {
  meter.check_items(elements.size());
  meter.step(elements.size());
  int depth = 1;
  bool hashable = kind == Sequence::Kind::tuple;
  for (const Value& element : elements) {
    depth = std::max(depth, 1 + element.depth());
    hashable = hashable && element.hashable();
  }
  meter.check_depth(depth);
  Meter::Hold hold(meter, elements.size() * sizeof(Value) + kObjectBytes);
  return Value::Form(std::make_shared<Sequence>(Sequence{kind, std::move(elements), depth, hashable, std::move(hold)}));
}

Value make_dict(std::shared_ptr<const Dict> dict) { return Value::Form(std::move(dict)); }

Value make_method(Meter& meter, const Value& self, const Builtin* builtin) {
  Meter::Hold hold(meter, sizeof(Method) + kObjectBytes);
  return Value::Form(std::make_shared<const Method>(Method{self, builtin, std::move(hold)}));
}

}  // namespace quire::jinja
