#include "serve/constraint.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::serve {
namespace {

using ConstraintKind = grammar::Kind;
using grammar::Source;
using nlohmann::ordered_json;

constexpr size_t kMostTypeBytes = 64, kMostChoices = 1024, kMostChoiceBytes = 4096;

// In a field of that name, as the text that it is or, for schemas, as JSON itself; none: it is not there.
std::optional<Source> read_source(Fields& fields, std::string_view name, ConstraintKind kind) {
  const ordered_json* value = fields.raw(name);
  if (!value) return std::nullopt;
  const bool is_schema = kind == ConstraintKind::json_schema;
  Source source{.kind = kind, .loose = is_schema && !fields.strict()};
  if (value->is_string())
    source.text = value->get<std::string>();
  else if (is_schema && (value->is_object() || value->is_boolean()))
    source.text = value->dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  else
    refuse(fields.path_of(name), "expected a string or, for schemas, an object");
  return source;
}

class ConstraintReader {
 public:
  explicit ConstraintReader(Fields& fields) : fields_(fields) {}

  std::optional<Constraint> read_sglangs() {
    add_sglangs();
    return std::move(found_);
  }

  std::optional<Constraint> read_all() {
    read_response_format();
    add_sglangs();
    read_named(fields_, {{"guided_json", ConstraintKind::json_schema},
                         {"guided_regex", ConstraintKind::regex},
                         {"guided_grammar", ConstraintKind::ebnf},
                         {"grammar", ConstraintKind::ebnf}});
    read_choice(fields_, "guided_choice");
    read_structured_outputs();
    return std::move(found_);
  }

 private:
  void add_sglangs() {
    read_named(fields_, {{"json_schema", ConstraintKind::json_schema},
                         {"regex", ConstraintKind::regex},
                         {"ebnf", ConstraintKind::ebnf}});
  }

  void add(Source source, std::string field) {
    if (found_) refuse(field, cat("cannot be combined with ", found_->field));
    found_ = Constraint{std::move(source), std::move(field)};
  }

  using Names = std::initializer_list<std::pair<const char*, ConstraintKind>>;
  void read_named(Fields& fields, Names names) {
    for (const auto& [name, kind] : names)
      if (auto source = read_source(fields, name, kind)) add(*std::move(source), fields.path_of(name));
  }

  // One of these texts and no other.
  void read_choice(Fields& fields, const char* name) {
    if (!fields.has(name)) return;
    std::string rule = "root ::=";
    for (const std::string& text : fields.strings(name, kMostChoices, kMostChoiceBytes))
      rule += cat(rule.ends_with('=') ? " " : " | ", quoted(text));
    if (rule.ends_with('=')) refuse(fields.path_of(name), "expected at least one text");
    add({ConstraintKind::ebnf, std::move(rule)}, fields.path_of(name));
  }

  static std::string quoted(const std::string& text) {
    std::string quoted = "\"";
    for (const char byte : text) {
      if (byte == '\n' || byte == '\r')
        quoted += byte == '\n' ? "\\n" : "\\r";
      else
        quoted.append(byte == '"' || byte == '\\' ? "\\" : "").append(1, byte);
    }
    return quoted + '"';
  }

  void read_structured_outputs() {
    auto outputs = fields_.object("structured_outputs");
    if (!outputs) return;
    read_named(
        *outputs,
        {{"json", ConstraintKind::json_schema}, {"regex", ConstraintKind::regex}, {"grammar", ConstraintKind::ebnf}});
    read_choice(*outputs, "choice");
    if (outputs->boolean("json_object").value_or(false)) add({ConstraintKind::json}, outputs->path_of("json_object"));
    outputs->refuse("structural_tag", "is not supported");
    outputs->finish();
  }

  void read_response_format() {
    auto format = fields_.object("response_format");
    if (!format) return;
    const std::string type = format->string("type", kMostTypeBytes).value_or("");
    const std::string field = fields_.path_of("response_format");
    if (type == "json_object")
      add(read_source(*format, "schema", ConstraintKind::json_schema).value_or(Source{ConstraintKind::json}), field);
    else if (type == "json_schema")
      add(named_schema(*format), field);
    else if (type != "text")
      refuse(format->path_of("type"), cat("expected text, json_object or json_schema, got ", in_quotes(type, 40)));
    format->finish();
  }

  static Source named_schema(Fields& format) {
    auto named = format.object("json_schema");
    if (!named) refuse(format.path_of("json_schema"), "is required");
    std::optional<Source> schema = read_source(*named, "schema", ConstraintKind::json_schema);
    if (!schema) refuse(named->path_of("schema"), "is required");
    for (const char* name : {"name", "description"}) named->ignore(name);
    if (named->boolean("strict").value_or(false)) schema->loose = false;
    named->finish();
    return *std::move(schema);
  }

  Fields& fields_;
  std::optional<Constraint> found_;
};

}  // namespace

std::optional<Constraint> read_openai_constraint(Fields& fields) { return ConstraintReader(fields).read_all(); }
std::optional<Constraint> read_sglang_constraint(Fields& fields) { return ConstraintReader(fields).read_sglangs(); }

void constrain(const Constraint& constraint, grammar::CallGrammars& grammars, engine::Request& request) {
  try {
    request.mask = grammars.mask(constraint.source);
  } catch (const Refused& refused) {
    refuse(constraint.field, refused.what());
  }
}

void note_unenforced(const Constraint& constraint, grammar::CallGrammars& grammars, Ignored& ignored) {
  try {
    for (const std::string& place : grammars.unenforced(constraint.source)) ignored.add(cat(constraint.field, place));
  } catch (const Refused& refused) {
    refuse(constraint.field, refused.what());
  }
}

}  // namespace quire::serve
