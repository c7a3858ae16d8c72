#include "text/jinja_compare.h"
#include "text/jinja_filters.h"
#include "text/jinja_format.h"
#include "text/jinja_json.h"
#include "text/jinja_methods.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

template <std::string (*change)(std::string_view)>
Value changed(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("this filter", arguments, {});
  const Value text = as_text(machine.meter, input);
  return machine.text(change(text.text()->bytes), text.text()->markup);
}

Value trim(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  const Value text = as_text(machine.meter, input);
  const std::string_view bytes = text.text()->bytes;
  const bool spaces = !bound.given(0) || bound[0].is_none();
  return machine.text(std::string(spaces ? strip(bytes, Side::both) : strip(bytes, Side::both, bound.text(0, ""))),
                      text.text()->markup);
}

Value replace(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  const Value plain = machine.text(show(machine.meter, input));
  const Integer count = bound.integer(2, -1);
  const size_t most = count < 0 || count > 0x7fffffff ? kNowhere : static_cast<size_t>(count);
  return replace_parts(machine, *plain.text(), show(machine.meter, bound[0]), show(machine.meter, bound[1]), most);
}

Value string(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("string", arguments, {});
  return as_text(machine.meter, input);
}

Value safe(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("safe", arguments, {});
  return machine.text(show(machine.meter, input), true);
}

Value force_escape(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("escape", arguments, {});
  return machine.text(escape_html(show(machine.meter, input)), true);
}

Value escape(Machine& machine, const Value& input, const Arguments& arguments) {
  if (input.text() && input.text()->markup) return input;
  return force_escape(machine, input, arguments);
}

Value format(Machine& machine, const Value& input, const Arguments& arguments) {
  check(arguments.positional.empty() || arguments.named.empty(),
        "format takes arguments by place or by name, not both");
  const Value form = as_text(machine.meter, input);
  if (arguments.named.empty())
    return format_percent(machine, *form.text(),
                          make_sequence(machine.meter, SequenceKind::tuple, arguments.positional));
  auto values = std::make_shared<Dict>(machine.meter);
  for (const auto& [name, value] : arguments.named) values->set(machine.text(name), value);
  return format_percent(machine, *form.text(), make_dict(std::move(values)));
}

std::string indentation(Machine& machine, const Bound& bound) {
  if (bound.given(0) && bound[0].text()) return bound[0].text()->bytes;
  const Integer width = bound.integer(0, 4);
  if (width <= 0) return "";
  machine.meter.check_bytes(static_cast<size_t>(std::min<Integer>(width, Integer{1} << 40)));
  return std::string(static_cast<size_t>(width), ' ');
}

Value indent(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  const std::string lines_with_end = text_of(input, "indent") + "\n";
  const std::string margin = indentation(machine, bound);
  const bool blank_too = bound.flag(2, false);
  std::string result = bound.flag(1, false) ? margin : "";
  bool first = true;
  for (const std::string_view line : split_lines(lines_with_end)) {
    if (!first) result += '\n';
    if (!first && (blank_too || !line.empty())) result += margin;
    first = false;
    result += line;
    machine.meter.check_bytes(result.size());
  }
  return machine.text(std::move(result), input.text()->markup);
}

std::string separator(Machine& machine, const Value& pair, Integer which) {
  const std::vector<Value> parts = elements_of(machine.meter, pair);
  check(parts.size() == 2, "tojson: 'separators' must be two strings");
  return text_of(parts[static_cast<size_t>(which)], "tojson");
}

Value tojson(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  input.check_defined();
  JsonStyle style;
  style.ascii_only = bound.flag(0, false);
  style.sorted_keys = bound.flag(3, false);
  if (bound.given(1) && !bound[1].is_none()) {
    style.lines = true;
    style.between.assign(1, ',');
    style.indent =
        bound[1].text() ? bound[1].text()->bytes : indentation(machine, Bound("tojson", {{bound[1]}, {}}, {"indent"}));
  }
  if (bound.given(2) && !bound[2].is_none()) {
    style.between = separator(machine, bound[2], 0);
    style.after_key = separator(machine, bound[2], 1);
  }
  return machine.text(to_json(machine.meter, input, style));
}

Value otherwise(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  const bool left_out = input.is_undefined() || (bound.flag(1, false) && !truth(input));
  if (!left_out) return input;
  return bound.given(0) ? bound[0] : machine.text("");
}

constexpr FilterEntry kTextFilters[] = {
    {"capitalize", changed<to_capitalized>},
    {"d", otherwise},
    {"default", otherwise},
    {"e", escape},
    {"escape", escape},
    {"forceescape", force_escape},
    {"format", format},
    {"indent", indent},
    {"lower", changed<to_lower>},
    {"replace", replace},
    {"safe", safe},
    {"string", string},
    {"title", changed<to_words_capitalized>},
    {"tojson", tojson},
    {"trim", trim},
    {"upper", changed<to_upper>},
};

}  // namespace

std::span<const FilterEntry> text_filters() { return kTextFilters; }

}  // namespace quire::text::jinja
