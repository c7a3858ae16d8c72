#include "text/jinja_compare.h"

#include <algorithm>
#include <cmath>

#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

// Views and iterators equal only themselves; a list never equals a tuple.
bool comparable(const Sequence& left, const Sequence& right) {
  if (left.tuple_like() || right.tuple_like()) return left.tuple_like() && right.tuple_like();
  return left.kind == right.kind && left.kind != SequenceKind::iterator && left.kind != SequenceKind::values;
}

bool equal_texts(Meter& meter, const Text& left, const Text& right) {
  if (left.bytes.size() != right.bytes.size()) return false;
  meter.work_on_bytes(left.bytes.size());
  return left.bytes == right.bytes;
}

bool less_text(Meter& meter, const Text& left, const Text& right) {
  meter.work_on_bytes(std::min(left.bytes.size(), right.bytes.size()));
  return left.bytes < right.bytes;  // UTF-8 sorts like code points
}

bool equal_sequences(Meter& meter, const Sequence& left, const Sequence& right) {
  if (&left == &right) return true;
  if (!comparable(left, right)) return false;
  return std::equal(left.elements.begin(), left.elements.end(), right.elements.begin(), right.elements.end(),
                    [&](const Value& a, const Value& b) { return equal(meter, a, b); });
}

bool equal_dicts(Meter& meter, const Dict& left, const Dict& right) {
  if (left.entries().size() != right.entries().size()) return false;
  return std::all_of(left.entries().begin(), left.entries().end(), [&](const auto& entry) {
    const Value* other = right.find(entry.first);
    return other && equal(meter, entry.second, *other);
  });
}

bool ordered(const Sequence& left, const Sequence& right) {
  return comparable(left, right) && (left.kind == SequenceKind::list || left.tuple_like());
}

bool contained_text(Meter& meter, const Text& text, const Value& part) {
  part.check_defined();
  check(part.text(), "'in' with a string on its right needs a string on its left, not ", part.type());
  meter.work_on_bytes(text.bytes.size());
  return find(text.bytes, part.text()->bytes) != kNowhere;
}

}  // namespace

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.number()) return *number != 0;
  if (const Text* text = value.text()) return !text->bytes.empty();
  if (const Sequence* sequence = value.sequence())
    return sequence->kind == SequenceKind::iterator || !sequence->elements.empty();
  if (const Dict* dict = value.dict()) return !dict->entries().empty();
  return true;
}

bool equal(Meter& meter, const Value& left, const Value& right) {
  meter.step();
  if (left.is_undefined() || right.is_undefined()) return left.is_undefined() && right.is_undefined();
  if (left.is_none() || right.is_none()) return left.is_none() && right.is_none();
  if (left.integer() && right.integer()) return *left.integer() == *right.integer();
  if (left.number() && right.number()) return *left.number() == *right.number();
  if (left.text() && right.text()) return equal_texts(meter, *left.text(), *right.text());
  if (left.sequence() && right.sequence()) return equal_sequences(meter, *left.sequence(), *right.sequence());
  if (left.dict() && right.dict()) return equal_dicts(meter, *left.dict(), *right.dict());
  return left.object() && left.object() == right.object();
}

bool less(Meter& meter, const Value& left, const Value& right) {
  meter.step();
  left.check_defined();
  right.check_defined();
  if (left.integer() && right.integer()) return *left.integer() < *right.integer();
  if (left.number() && right.number()) return *left.number() < *right.number();
  if (left.text() && right.text()) return less_text(meter, *left.text(), *right.text());
  const Sequence *first = left.sequence(), *second = right.sequence();
  check(first && second && ordered(*first, *second), "a ", left.type(), " and a ", right.type(), " have no order");
  const size_t common = std::min(first->elements.size(), second->elements.size());
  for (size_t i = 0; i < common; ++i)
    if (!equal(meter, first->elements[i], second->elements[i]))
      return less(meter, first->elements[i], second->elements[i]);
  return first->elements.size() < second->elements.size();
}

bool at_most(Meter& meter, const Value& left, const Value& right) {
  return less(meter, left, right) || equal(meter, left, right);
}

bool identical(const Value& left, const Value& right) {
  if (left.boolean() || right.boolean())
    return left.boolean() && right.boolean() && *left.boolean() == *right.boolean();
  if (left.is_none() || right.is_none()) return left.is_none() && right.is_none();
  if (left.integer() && right.integer()) return *left.integer() == *right.integer();
  if (left.text() || left.sequence() || left.dict())
    return left.text() == right.text() && left.sequence() == right.sequence() && left.dict() == right.dict();
  return left.object() && left.object() == right.object();
}

bool contains(Meter& meter, const Value& container, const Value& element) {
  if (const Text* text = container.text()) return contained_text(meter, *text, element);
  if (const Dict* dict = container.dict()) return dict->find(element) != nullptr;
  const std::vector<Value> elements = elements_of(meter, container);
  return std::any_of(elements.begin(), elements.end(),
                     [&](const Value& candidate) { return equal(meter, candidate, element); });
}

size_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.text()) return text->code_points;
  if (const Dict* dict = value.dict()) return dict->entries().size();
  const Sequence* sequence = value.sequence();
  check(sequence && sequence->kind != SequenceKind::iterator, "a ", value.type(), " has no length");
  return sequence->elements.size();
}

std::vector<Value> elements_of(Meter& meter, const Value& value) {
  if (value.is_undefined()) return {};
  if (const Dict* dict = value.dict()) return keys_of(*dict);
  if (Sequence* sequence = value.sequence()) {
    meter.step(sequence->elements.size());
    if (sequence->kind != SequenceKind::iterator) return sequence->elements;
    const size_t from = std::exchange(sequence->next, sequence->elements.size());
    return {sequence->elements.begin() + static_cast<std::ptrdiff_t>(from), sequence->elements.end()};
  }
  check(value.text(), "a ", value.type(), " cannot be walked");
  std::vector<Value> result;
  meter.check_items(length(value));
  meter.step(length(value));
  for (const std::string_view character : characters(value.text()->bytes))
    result.push_back(make_text(meter, std::string(character), value.text()->markup));
  return result;
}

bool iterable(const Value& value) { return value.is_undefined() || value.text() || value.sequence() || value.dict(); }

}  // namespace quire::text::jinja
