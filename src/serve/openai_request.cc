#include "serve/openai_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"
#include "serve/api_error.h"
#include "serve/call_limits.h"
#include "serve/request_reader.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

// --- fields without an effect, and fields that would need one

// Notes of callers and their accounts, and what SGLang's router always fills in.
void ignore_harmless(Fields& fields) {
  for (const char* name : {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
                           "prompt_cache_retention", "separate_reasoning", "stream_reasoning", "log_metrics"})
    fields.ignore(name);
}

void accept_only_false(Fields& fields, std::string_view name, std::string_view why) {
  if (fields.boolean(name).value_or(false)) refuse(fields.path_of(name), std::string(why));
}

void refuse_unsupported(Fields& fields) {
  accept_only_false(fields, "return_hidden_states", "hidden states are not given out");
  accept_only_false(fields, "store", "answers are not stored");
  for (const char* name : {"lora_path", "session_params", "custom_logit_processor", "custom_params", "stop_regex",
                           "bootstrap_host", "bootstrap_port", "bootstrap_room"})
    fields.refuse(name, "is not supported");
}

// --- streams

void read_stream(Fields& fields, CallSettings& settings) {
  settings.stream = fields.boolean("stream").value_or(false);
  auto options = fields.object("stream_options");
  if (!options) return;
  if (!settings.stream) refuse(fields.path_of("stream_options"), "is only allowed when stream is true");
  settings.stream_usage = options->boolean("include_usage").value_or(false);
  options->ignore("include_obfuscation");
  options->finish();
}

// --- constraints

grammar::Source schema_source(Fields& format) {
  auto named = format.object("json_schema");
  if (!named) refuse(format.path_of("json_schema"), "is required");
  const ordered_json* schema = named->raw("schema");
  if (!schema) refuse(named->path_of("schema"), "is required");
  for (const char* name : {"name", "description", "strict"}) named->ignore(name);
  named->finish();
  return {grammar::Kind::json_schema, schema->dump(-1, ' ', false, ordered_json::error_handler_t::replace)};
}

std::optional<grammar::Source> read_response_format(Fields& fields) {
  auto format = fields.object("response_format");
  if (!format) return std::nullopt;
  const std::string type = format->string("type", kMostNameBytes).value_or("");
  std::optional<grammar::Source> source;
  if (type == "json_object")
    source = {grammar::Kind::json};
  else if (type == "json_schema")
    source = schema_source(*format);
  else if (type != "text")
    refuse(format->path_of("type"), cat("expected text, json_object or json_schema, got ", in_quotes(type, 40)));
  format->finish();
  return source;
}

void read_constraints(Fields& fields, CallSettings& settings) {
  settings.constraint = read_response_format(fields);
  if (settings.constraint) settings.constraint_field = "response_format";
  std::optional<grammar::Source> own = read_constraint(fields);
  if (!own) return;
  const char* field = own->kind == grammar::Kind::regex  ? "regex"
                      : own->kind == grammar::Kind::ebnf ? "ebnf"
                                                         : "json_schema";
  if (settings.constraint) refuse(field, "cannot be combined with response_format");
  settings.constraint = std::move(own);
  settings.constraint_field = field;
}

// --- the rest

TextRules read_text_rules(Fields& fields) {
  TextRules rules;
  rules.stops = read_stops(fields);
  rules.skip_special = fields.boolean("skip_special_tokens").value_or(true);
  rules.keep_stop = fields.boolean("no_stop_trim").value_or(false);
  return rules;
}

// Both separate the cached prefixes of calls from those of others.
std::string read_salt(Fields& fields) {
  const std::string salt = fields.string("cache_salt", kMostNameBytes).value_or("");
  const std::string key = fields.string("extra_key", kMostNameBytes).value_or("");
  return salt.empty() && key.empty() ? "" : cat(salt.size(), ":", salt, key);
}

int32_t read_choices(Fields& fields, const Service& service) {
  return static_cast<int32_t>(fields.integer("n", 1, service.options().most_choices).value_or(1));
}

}  // namespace

CallSettings read_settings(Fields& fields, const Service& service, const Caller& caller) {
  CallSettings settings;
  settings.model = read_model(fields, service);
  settings.rid = fields.string("rid", kMostNameBytes).value_or("");
  settings.choices = read_choices(fields, service);
  read_stream(fields, settings);
  read_sampling(fields, service, settings.request);
  settings.key = caller.key;
  settings.request.priority = read_priority(fields, caller);
  settings.request.salt = joined_salt(caller, read_salt(fields));
  settings.text = read_text_rules(fields);
  read_constraints(fields, settings);
  ignore_harmless(fields);
  refuse_unsupported(fields);
  return settings;
}

std::string read_model(Fields& fields, const Service& service) {
  std::string name = fields.string("model", 4096).value_or("");
  const std::vector<std::string>& aliases = service.options().aliases;
  const bool is_alias = std::find(aliases.begin(), aliases.end(), name) != aliases.end();
  return is_alias ? std::move(name) : service.options().served_model_name;
}

std::vector<int32_t> encode_text(std::string_view text, const Service& service, bool parse_special,
                                 std::string_view field) {
  check_text_length(text, service, field);
  std::vector<int32_t> ids = encoded_text(text, {.parse_special = parse_special}, service, field);
  if (ids.empty()) refuse(std::string(field), "the text is empty");
  return ids;
}

void add_jobs(std::vector<Job>& jobs, const CallSettings& settings, const engine::Request& request,
              const std::string& rid, const Service& service) {
  for (int32_t choice = 0; choice < settings.choices; ++choice) {
    Job job{.rid = jobs.empty() ? rid : cat(rid, "_", jobs.size()),
            .request = request,
            .text = settings.text,
            .key = settings.key};
    job.request.sampling.seed += static_cast<uint64_t>(choice);
    if (settings.constraint)  // each text has a mask of its own
      constrain(*settings.constraint, settings.constraint_field, service, job.request);
    jobs.push_back(std::move(job));
  }
}

}  // namespace quire::serve
