#include "text/jinja_show.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja_object.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

constexpr int kLowestPlainExponent = -4;  // below and above, Python writes an exponent
constexpr int kHighestPlainExponent = 16;

void append_escaped(std::string& result, char32_t value) {
  char buffer[12];
  if (value >= kInvalidByte) value -= kInvalidByte;
  const char* form = value < 0x100 ? "\\x%02x" : value < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof buffer, form, static_cast<unsigned>(value));
  result += buffer;
}

void append_quoted(std::string& result, std::string_view character, char quote) {
  const char c = character[0];
  if (c == quote || c == '\\') {
    result += '\\';
    result += c;
  } else if (c == '\n') {
    result += "\\n";
  } else if (c == '\r') {
    result += "\\r";
  } else if (c == '\t') {
    result += "\\t";
  } else if (const char32_t value = code_point_at(character, 0).value; is_printable(value)) {
    result += character;
  } else {
    append_escaped(result, value);
  }
}

// Counts what it writes, because a value can hold one string many times.
class ReprWriter {
 public:
  explicit ReprWriter(Meter& meter) : meter_(meter) {}

  void add(std::string_view part) {
    meter_.check_bytes(result_.size() + part.size());
    result_ += part;
  }
  void add_repr(const Value& value);
  std::string take() { return std::move(result_); }

 private:
  void add_list(const std::vector<Value>& elements, std::string_view open, std::string_view close);
  void add_sequence(const Sequence& sequence);
  void add_dict(const Dict& dict);

  Meter& meter_;
  std::string result_;
};

void ReprWriter::add_list(const std::vector<Value>& elements, std::string_view open, std::string_view close) {
  add(open);
  for (size_t i = 0; i < elements.size(); ++i) {
    if (i > 0) add(", ");
    add_repr(elements[i]);
  }
  add(close);
}

void ReprWriter::add_sequence(const Sequence& sequence) {
  const auto& elements = sequence.elements;
  switch (sequence.kind) {
    case SequenceKind::list:
      return add_list(elements, "[", "]");
    case SequenceKind::tuple:
    case SequenceKind::group:
      return add_list(elements, "(", elements.size() == 1 ? ",)" : ")");
    case SequenceKind::keys:
      return add_list(elements, "dict_keys([", "])");
    case SequenceKind::values:
      return add_list(elements, "dict_values([", "])");
    case SequenceKind::items:
      return add_list(elements, "dict_items([", "])");
    case SequenceKind::range:
    case SequenceKind::iterator:
      throw CheckError("a range or generator has no text of its own: make it a list");
  }
}

void ReprWriter::add_dict(const Dict& dict) {
  add("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) add(", ");
    first = false;
    add_repr(key);
    add(": ");
    add_repr(value);
  }
  add("}");
}

void ReprWriter::add_repr(const Value& value) {
  meter_.step();
  if (value.is_undefined())
    add("Undefined");
  else if (value.is_none())
    add("None");
  else if (const bool* flag = value.boolean())
    add(*flag ? "True" : "False");
  else if (const auto integer = value.integer())
    add(to_string(*integer));
  else if (const double* real = value.real())
    add(show_real(*real));
  else if (const Text* text = value.text())
    add(text->markup ? cat("Markup(", repr_of_text(text->bytes), ")") : repr_of_text(text->bytes));
  else if (const Sequence* sequence = value.sequence())
    add_sequence(*sequence);
  else if (const Dict* dict = value.dict())
    add_dict(*dict);
  else if (const Method* method = value.method())
    add(cat("<method ", method->name, ">"));
  else
    add(value.object()->shown());
}

}  // namespace

std::string to_string(Integer value) {
  if (value == 0) return "0";
  std::string digits;
  for (Integer rest = value; rest != 0; rest /= 10) {
    const int digit = static_cast<int>(rest % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  if (value < 0) digits.insert(digits.begin(), '-');
  return digits;
}

std::string show_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto shortest = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view scientific(buffer, shortest.ptr - buffer);
  const size_t e = scientific.find('e');
  int exponent = 0;
  const char* digits_of_exponent = scientific.data() + e + (scientific[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, shortest.ptr, exponent);
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
    bytes = code_point_at(text, at).bytes;
    append_quoted(result, text.substr(at, bytes), quote);
  }
  result += quote;
  return result;
}

std::string repr(Meter& meter, const Value& value) {
  ReprWriter writer(meter);
  writer.add_repr(value);
  return writer.take();
}

std::string show(Meter& meter, const Value& value) {
  if (value.is_undefined()) return "";
  if (const Text* text = value.text()) return text->bytes;
  return repr(meter, value);
}

Value as_text(Meter& meter, const Value& value) { return value.text() ? value : make_text(meter, show(meter, value)); }

const std::string& text_of(const Value& value, std::string_view wanted_by) {
  value.check_defined();
  check(value.text(), wanted_by, " needs a string, not ", value.type());
  return value.text()->bytes;
}

}  // namespace quire::text::jinja
