#include "text/jinja_format.h"

#include <algorithm>

#include "text/jinja_compare.h"
#include "text/jinja_format_spec.h"
#include "text/jinja_operators.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

// What both formatters write into. Put into markup, plain text is escaped.
class Result {
 public:
  Result(Machine& machine, const Text& form) : machine_(machine), markup_(form.markup) {}

  void add(std::string_view part) {
    machine_.meter.check_bytes(text_.size() + part.size());
    text_ += part;
  }
  void add_value(const Value& value, const std::string& formatted) {
    const bool plain = markup_ && !(value.text() && value.text()->markup);
    add(plain ? escape_html(formatted) : formatted);
  }
  Value take() { return machine_.text(std::move(text_), markup_); }

 private:
  Machine& machine_;
  bool markup_;
  std::string text_;
};

class PercentFormatter {
 public:
  PercentFormatter(Machine& machine, const Text& form, const Value& values)
      : machine_(machine), form_(form.bytes), values_(values), result_(machine, form) {}

  Value run() {
    while (at_ < form_.size()) {
      const size_t percent = std::min(form_.find('%', at_), form_.size());
      result_.add(form_.substr(at_, percent - at_));
      at_ = percent + 1;
      if (percent < form_.size()) convert();
    }
    const Sequence* tuple = values_.sequence();
    const bool all_used = values_.dict() || used_ == (tuple && tuple->tuple_like() ? tuple->elements.size() : 1);
    check(all_used, "'%': not all arguments were used by the format");
    return result_.take();
  }

 private:
  void convert() {
    if (form_.substr(at_).starts_with('%')) {
      ++at_;
      return result_.add("%");
    }
    const Value* named = read_key();
    FormatSpec spec = read_flags();
    check(at_ < form_.size(), "'%': the format is incomplete");
    spec.type = form_[at_++];
    const Value value = named ? *named : next_value();
    result_.add_value(value, formatted(spec, value));
  }

  const Value* read_key() {
    if (!form_.substr(at_).starts_with('(')) return nullptr;
    const size_t end = form_.find(')', at_);
    check(end != form_.npos && values_.dict(), "'%': a name in the format needs a dict");
    const std::string_view key = form_.substr(at_ + 1, end - at_ - 1);
    const Value* value = values_.dict()->find(key);
    check(value, "'%': there is no '", key, "'");
    at_ = end + 1;
    return value;
  }

  FormatSpec read_flags() {
    FormatSpec spec;
    for (; at_ < form_.size(); ++at_) {
      const char flag = form_[at_];
      if (flag == '-')
        spec.align = '<';
      else if (flag == '+' || flag == ' ')
        spec.sign = flag;
      else if (flag == '#')
        spec.alternate = true;
      else if (flag == '0')
        spec.fill.assign(1, '0');
      else
        break;
    }
    if (spec.align == '<')
      spec.fill.assign(1, ' ');
    else
      spec.align = spec.fill == "0" ? '=' : '>';
    spec.width = read_size(form_, at_);
    if (form_.substr(at_).starts_with('.')) spec.precision = static_cast<int>(read_size(form_, ++at_));
    return spec;
  }

  Value next_value() {
    const Sequence* tuple = values_.sequence();
    if (!tuple || !tuple->tuple_like()) {
      check(used_++ == 0, "'%': not enough arguments for the format");
      return values_;
    }
    check(used_ < tuple->elements.size(), "'%': not enough arguments for the format");
    return tuple->elements[used_++];
  }

  std::string formatted(FormatSpec spec, const Value& value) {
    if (spec.type == 's' || spec.type == 'r') {
      spec.fill.assign(1, ' ');
      if (spec.align == '=') spec.align = '>';
      const std::string text = spec.type == 's' ? show(machine_.meter, value) : repr(machine_.meter, value);
      spec.type = 's';
      return format_value(machine_, spec, machine_.text(text));
    }
    check(std::string_view("diuxXoeEfFgGc").find(spec.type) != std::string_view::npos,
          "'%': the format has no conversion '", std::string(1, spec.type), "'");
    value.check_defined();
    check(value.number().has_value(), "'%", std::string(1, spec.type), "' needs a number, not ", value.type());
    const bool whole = std::string_view("diu").find(spec.type) != std::string_view::npos;
    if (!whole || value.integer()) return format_value(machine_, spec, value);
    spec.type = 'f';  // of a real, the integer part
    spec.precision = 0;
    return format_value(
        machine_, spec,
        Value::real(static_cast<double>(static_cast<int64_t>(std::clamp(*value.number(), -9.0e15, 9.0e15)))));
  }

  Machine& machine_;
  std::string_view form_;
  const Value& values_;
  Result result_;
  size_t at_ = 0;
  size_t used_ = 0;
};

class BraceFormatter {
 public:
  BraceFormatter(Machine& machine, const Text& form, const Arguments& arguments)
      : machine_(machine), form_(form.bytes), arguments_(arguments), result_(machine, form) {}

  Value run() {
    while (at_ < form_.size()) {
      const size_t brace = std::min(form_.find_first_of("{}", at_), form_.size());
      result_.add(form_.substr(at_, brace - at_));
      at_ = brace;
      if (brace < form_.size()) convert();
    }
    return result_.take();
  }

 private:
  void convert() {
    const char brace = form_[at_];
    if (at_ + 1 < form_.size() && form_[at_ + 1] == brace) {
      at_ += 2;
      return result_.add(std::string(1, brace));
    }
    const size_t end = form_.find('}', at_);
    check(brace == '{' && end != form_.npos, "format: a single '", std::string(1, brace), "'");
    std::string_view field = form_.substr(at_ + 1, end - at_ - 1);
    check(field.find('{') == field.npos, "format: a field inside of a field is not supported");
    at_ = end + 1;
    const size_t colon = std::min(field.find(':'), field.size());
    add_field(field.substr(0, colon), field.substr(std::min(colon + 1, field.size())));
  }

  void add_field(std::string_view name, std::string_view spec) {
    const size_t mark = std::min(name.find('!'), name.size());
    const std::string_view conversion = name.substr(mark);
    check(conversion.empty() || conversion == "!s" || conversion == "!r", "format: there is no conversion '",
          conversion, "'");
    Value value = lookup(name.substr(0, mark));
    if (conversion == "!r") value = machine_.text(repr(machine_.meter, value));
    if (conversion == "!s") value = as_text(machine_.meter, value);
    const std::string formatted =
        spec.empty() ? show(machine_.meter, value) : format_value(machine_, parse_spec(spec), value);
    result_.add_value(value, formatted);
  }

  // name, number or nothing, then .attribute and [element] in any number.
  Value lookup(std::string_view name) {
    const size_t first = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, first));
    name.remove_prefix(first);
    while (!name.empty()) {
      const bool element = name[0] == '[';
      const size_t end = element ? name.find(']') : std::min(name.find_first_of(".[", 1), name.size());
      check(end != name.npos && (element || name[0] == '.'), "format: a field is malformed");
      const std::string_view part = name.substr(1, end - 1);
      value = element ? element_of(machine_, value, key(part)) : attribute_of(machine_, value, part);
      name.remove_prefix(element ? end + 1 : end);
    }
    return value;
  }

  Value key(std::string_view part) {
    size_t end = 0;
    const size_t index = read_size(part, end);
    if (!part.empty() && end == part.size()) return Value::integer(static_cast<Integer>(index));
    return machine_.text(std::string(part));
  }

  Value argument(std::string_view name) {
    size_t end = 0;
    size_t index = read_size(name, end);
    if (end < name.size()) {
      for (const auto& [key, value] : arguments_.named)
        if (key == name) return value;
      throw CheckError(cat("format: there is no '", name, "'"));
    }
    if (name.empty()) index = used_++;
    check(index < arguments_.positional.size(), "format: there is no argument ", index);
    return arguments_.positional[index];
  }

  Machine& machine_;
  std::string_view form_;
  const Arguments& arguments_;
  Result result_;
  size_t at_ = 0;
  size_t used_ = 0;
};

}  // namespace

Value format_percent(Machine& machine, const Text& form, const Value& values) {
  return PercentFormatter(machine, form, values).run();
}

Value format_braces(Machine& machine, const Text& form, const Arguments& arguments) {
  return BraceFormatter(machine, form, arguments).run();
}

}  // namespace quire::text::jinja
