#include "jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "jinja/builtins.h"
#include "jinja/operators.h"
#include "jinja/strings.h"

namespace quire::jinja {
namespace {

using nlohmann::ordered_json;

constexpr int kLowestPlainExponent = -4;  // below and above, Python writes an exponent
constexpr int kHighestPlainExponent = 16;

// The shortest digits that read back as the same number, in Python's layout.
std::string real_to_string(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto shortest = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view scientific(buffer, shortest.ptr - buffer);
  const size_t e = scientific.find('e');
  int exponent = 0;
  std::from_chars(scientific.data() + e + (scientific[e + 1] == '+' ? 2 : 1), shortest.ptr, exponent);
  if (exponent < kLowestPlainExponent || exponent >= kHighestPlainExponent) return std::string(scientific);
  const auto plain = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string result(buffer, plain.ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

std::string repr_of_text(std::string_view text) {
  const bool single = text.find('\'') != text.npos, twofold = text.find('"') != text.npos;
  const char quote = single && !twofold ? '"' : '\'';
  std::string result(1, quote);
  for (size_t at = 0, bytes; at < text.size(); at += bytes) {
    static constexpr std::string_view kNamed = "\n\r\t", kLetters = "nrt";
    auto [value, length] = code_point_at(text, at);
    bytes = length;
    const char c = text[at];
    if (c == quote || c == '\\') {
      result.append(1, '\\').append(1, c);
    } else if (const size_t name = kNamed.find(c); name != kNamed.npos) {
      result.append(1, '\\').append(1, kLetters[name]);
    } else if (is_printable(value)) {
      result += text.substr(at, bytes);
    } else {
      char buffer[12];
      if (value >= kInvalidByte) value -= kInvalidByte;
      const char* form = value < 0x100 ? "\\x%02x" : value < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer, sizeof buffer, form, static_cast<unsigned>(value));
      result += buffer;
    }
  }
  return result + quote;
}

// Counts what it writes, because a value can hold one string many times.
class Writer {
 public:
  explicit Writer(Meter& meter) : meter_(meter) {}
  std::string take() { return std::move(result_); }

 protected:
  void add(std::string_view part) {
    meter_.check_bytes(result_.size() + part.size());
    meter_.work_on_bytes(part.size());
    result_ += part;
  }

  Meter& meter_;
  std::string result_;
};

class ReprWriter : public Writer {
 public:
  using Writer::Writer;

  void add_value(const Value& value) {
    meter_.step();
    if (value.is_undefined()) return add("Undefined");
    if (value.is_none()) return add("None");
    if (const bool* flag = value.boolean()) return add(*flag ? "True" : "False");
    if (const auto integer = value.integer()) return add(to_string(*integer));
    if (const double* real = value.real()) return add(real_to_string(*real));
    if (const Text* text = value.text()) return add(repr_of_text(text->bytes));
    if (const Sequence* sequence = value.sequence()) return add_sequence(*sequence);
    if (const Dict* dict = value.dict()) return add_dict(*dict);
    add(cat("<", value.type(), ">"));
  }

 private:
  void add_sequence(const Sequence& sequence) {
    check(sequence.kind <= Sequence::Kind::tuple, "a range, view or generator has no text of its own: make it a list");
    const bool tuple = sequence.kind == Sequence::Kind::tuple;
    add(tuple ? "(" : "[");
    for (size_t i = 0; i < sequence.elements.size(); ++i) {
      if (i > 0) add(", ");
      add_value(sequence.elements[i]);
    }
    add(!tuple ? "]" : sequence.elements.size() == 1 ? ",)" : ")");
  }

  void add_dict(const Dict& dict) {
    add("{");
    for (const auto& entry : dict.entries()) {
      if (&entry != dict.entries().data()) add(", ");
      add_value(entry.first);
      add(": ");
      add_value(entry.second);
    }
    add("}");
  }
};

class JsonWriter : public Writer {
 public:
  JsonWriter(Meter& meter, const JsonStyle& style) : Writer(meter), style_(style) {}

  void add_value(const Value& value, int level) {
    meter_.step();
    if (value.is_none()) return add("null");
    if (const bool* flag = value.boolean()) return add(*flag ? "true" : "false");
    if (const auto integer = value.integer()) return add(to_string(*integer));
    if (const double* real = value.real()) return add_real(*real);
    if (const Text* text = value.text()) return add_string(text->bytes);
    if (const Dict* dict = value.dict()) return add_dict(*dict, level);
    const Sequence* sequence = value.sequence();
    check(sequence && sequence->kind <= Sequence::Kind::tuple, "tojson: a value of type ", value.type(),
          " is not JSON");
    add_list(sequence->elements, level);
  }

 private:
  void add_real(double value) {
    if (std::isnan(value)) return add("NaN");
    if (std::isinf(value)) return add(value < 0 ? "-Infinity" : "Infinity");
    add(real_to_string(value));
  }

  void add_escaped(char32_t value) {
    static constexpr std::string_view kNamed = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
    char buffer[16];
    if (const size_t at = value < 0x80 ? kNamed.find(static_cast<char>(value)) : kNamed.npos; at != kNamed.npos)
      std::snprintf(buffer, sizeof buffer, "\\%c", kLetters[at]);
    else if (value < 0x10000)
      std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(value));
    else
      std::snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x", static_cast<unsigned>(0xd800 + ((value - 0x10000) >> 10)),
                    static_cast<unsigned>(0xdc00 + ((value - 0x10000) & 0x3ff)));
    result_ += buffer;
  }

  void add_string(std::string_view text) {
    meter_.check_bytes(result_.size() + text.size());
    result_ += '"';
    for (size_t at = 0; at < text.size();) {
      const auto [value, bytes] = code_point_at(text, at);
      const bool foreign = style_.ascii_only && value >= 0x80 && value < kInvalidByte;
      if (value < 0x20 || value == '"' || value == '\\' || foreign)
        add_escaped(value);
      else
        result_.append(text, at, bytes);
      at += bytes;
    }
    result_ += '"';
    meter_.check_bytes(result_.size());
  }

  void add_line(int level) {
    if (!style_.lines) return;
    add("\n");
    for (int i = 0; i < level; ++i) add(style_.indent);
  }

  void add_list(const std::vector<Value>& elements, int level) {
    if (elements.empty()) return add("[]");
    add("[");
    for (const Value& element : elements) {
      if (&element != elements.data()) add(style_.between);
      add_line(level + 1);
      add_value(element, level + 1);
    }
    add_line(level);
    add("]");
  }

  void add_key(const Value& key) {
    if (const Text* text = key.text()) return add_string(text->bytes);
    check(key.is_none() || key.number(), "tojson: a ", key.type(), " cannot be a key");
    add("\"");
    add_value(key, 0);
    add("\"");
  }

  void add_dict(const Dict& dict, int level) {
    if (dict.entries().empty()) return add("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sorted_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return less(meter_, a->first, b->first); });
    add("{");
    for (const auto* entry : entries) {
      if (entry != entries.front()) add(style_.between);
      add_line(level + 1);
      add_key(entry->first);
      add(style_.after_key);
      add_value(entry->second, level + 1);
    }
    add_line(level);
    add("}");
  }

  const JsonStyle& style_;
};

// Depth is checked on the way down, before the stack feels it.
Value converted(Meter& meter, const ordered_json& json, int depth) {
  meter.check_depth(depth);
  meter.step();
  switch (json.type()) {
    case ordered_json::value_t::null:
      return Value();
    case ordered_json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case ordered_json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case ordered_json::value_t::number_unsigned:
      return Value::integer(static_cast<Integer>(json.get<uint64_t>()));
    case ordered_json::value_t::number_float:
      return Value::real(json.get<double>());
    case ordered_json::value_t::string:
      return make_text(meter, json.get_ref<const std::string&>());
    case ordered_json::value_t::array: {
      std::vector<Value> elements;
      meter.check_items(json.size());
      elements.reserve(json.size());
      for (const ordered_json& element : json) elements.push_back(converted(meter, element, depth + 1));
      return make_sequence(meter, Sequence::Kind::list, std::move(elements));
    }
    case ordered_json::value_t::object: {
      auto dict = std::make_shared<Dict>(meter);
      for (const auto& [key, value] : json.items())
        dict->set(make_text(meter, key), converted(meter, value, depth + 1));
      return make_dict(std::move(dict));
    }
    default:
      throw CheckError("it holds something that is not JSON");
  }
}

}  // namespace

std::string to_string(Integer value) {
  if (value == 0) return "0";
  std::string digits;
  for (Integer rest = value; rest != 0; rest /= 10) {
    const int digit = static_cast<int>(rest % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  return value < 0 ? "-" + digits : digits;
}

std::string str(Meter& meter, const Value& value) {
  if (value.is_undefined()) return "";
  if (const Text* text = value.text()) {
    meter.work_on_bytes(text->bytes.size());
    return text->bytes;
  }
  return repr(meter, value);
}

std::string repr(Meter& meter, const Value& value) {
  ReprWriter writer(meter);
  writer.add_value(value);
  return writer.take();
}

Value as_text(Meter& meter, const Value& value) { return value.text() ? value : make_text(meter, str(meter, value)); }

const std::string& text_of(const Value& value, std::string_view wanted_by) {
  value.check_defined();
  check(value.text(), wanted_by, " needs a string, not ", value.type());
  return value.text()->bytes;
}

std::string to_json(Meter& meter, const Value& value, const JsonStyle& style) {
  JsonWriter writer(meter, style);
  writer.add_value(value, 0);
  return writer.take();
}

Value from_json(Meter& meter, const ordered_json& json) { return converted(meter, json, 0); }

}  // namespace quire::jinja
