#include "text/jinja_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "text/jinja_compare.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

using nlohmann::ordered_json;

// Depth is checked on the way down, before the stack feels it.
Value convert(Meter& meter, const ordered_json& json, int depth);

Value convert_array(Meter& meter, const ordered_json& json, int depth) {
  std::vector<Value> elements;
  meter.check_items(json.size());
  elements.reserve(json.size());
  for (const ordered_json& element : json) elements.push_back(convert(meter, element, depth));
  return make_sequence(meter, SequenceKind::list, std::move(elements));
}

Value convert_object(Meter& meter, const ordered_json& json, int depth) {
  auto dict = std::make_shared<Dict>(meter);
  for (const auto& [key, value] : json.items()) dict->set(make_text(meter, key), convert(meter, value, depth));
  return make_dict(std::move(dict));
}

Value convert(Meter& meter, const ordered_json& json, int depth) {
  meter.check_depth(depth);
  meter.step();
  using Type = ordered_json::value_t;
  switch (json.type()) {
    case Type::null:
      return Value();
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_integer:
      return Value::integer(json.get<int64_t>());
    case Type::number_unsigned:
      return Value::integer(static_cast<Integer>(json.get<uint64_t>()));
    case Type::number_float:
      return Value::real(json.get<double>());
    case Type::string:
      return make_text(meter, json.get_ref<const std::string&>());
    case Type::array:
      return convert_array(meter, json, depth + 1);
    case Type::object:
      return convert_object(meter, json, depth + 1);
    default:
      throw CheckError("the context holds something that is not JSON");
  }
}

class JsonWriter {
 public:
  JsonWriter(Meter& meter, const JsonStyle& style) : meter_(meter), style_(style) {}

  void add_value(const Value& value, int level);
  std::string take() { return std::move(result_); }

 private:
  void add(std::string_view part) {
    meter_.check_bytes(result_.size() + part.size());
    result_ += part;
  }
  void add_string(std::string_view text);
  void add_escaped(char32_t value);
  void add_list(const std::vector<Value>& elements, int level);
  void add_dict(const Dict& dict, int level);
  void add_key(const Value& key);
  void start_element(bool first, int level);
  void end_elements(int level);

  Meter& meter_;
  const JsonStyle& style_;
  std::string result_;
};

std::string show_json_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return show_real(value);
}

void JsonWriter::add_escaped(char32_t value) {
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

void JsonWriter::add_string(std::string_view text) {
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

void JsonWriter::start_element(bool first, int level) {
  if (!first) add(style_.between);
  end_elements(level);
}

void JsonWriter::end_elements(int level) {
  if (!style_.lines) return;
  add("\n");
  for (int i = 0; i < level; ++i) add(style_.indent);
}

void JsonWriter::add_list(const std::vector<Value>& elements, int level) {
  if (elements.empty()) return add("[]");
  add("[");
  for (size_t i = 0; i < elements.size(); ++i) {
    start_element(i == 0, level + 1);
    add_value(elements[i], level + 1);
  }
  end_elements(level);
  add("]");
}

void JsonWriter::add_key(const Value& key) {
  if (const Text* text = key.text()) return add_string(text->bytes);
  check(key.is_none() || key.number(), "tojson: a ", key.type(), " cannot be a key");
  add("\"");
  add_value(key, 0);
  add("\"");
}

void JsonWriter::add_dict(const Dict& dict, int level) {
  if (dict.entries().empty()) return add("{}");
  std::vector<const std::pair<Value, Value>*> entries;
  for (const auto& entry : dict.entries()) entries.push_back(&entry);
  if (style_.sorted_keys)
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const auto* a, const auto* b) { return less(meter_, a->first, b->first); });
  add("{");
  for (size_t i = 0; i < entries.size(); ++i) {
    start_element(i == 0, level + 1);
    add_key(entries[i]->first);
    add(style_.after_key);
    add_value(entries[i]->second, level + 1);
  }
  end_elements(level);
  add("}");
}

void JsonWriter::add_value(const Value& value, int level) {
  meter_.step();
  if (value.is_none()) return add("null");
  if (const bool* flag = value.boolean()) return add(*flag ? "true" : "false");
  if (const auto integer = value.integer()) return add(to_string(*integer));
  if (const double* real = value.real()) return add(show_json_real(*real));
  if (const Text* text = value.text()) return add_string(text->bytes);
  if (const Dict* dict = value.dict()) return add_dict(*dict, level);
  const Sequence* sequence = value.sequence();
  const bool list = sequence && sequence->kind != SequenceKind::range && sequence->indexed();
  check(list, "tojson: a value of type ", value.type(), " is not JSON");
  add_list(sequence->elements, level);
}

}  // namespace

Value from_json(Meter& meter, const ordered_json& json) { return convert(meter, json, 0); }

std::string to_json(Meter& meter, const Value& value, const JsonStyle& style) {
  JsonWriter writer(meter, style);
  writer.add_value(value, 0);
  return writer.take();
}

}  // namespace quire::text::jinja
