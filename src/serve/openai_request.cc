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
  fields.no_effect("store", "answers are not stored");
}

void accept_only_false(Fields& fields, std::string_view name, std::string_view why) {
  if (fields.boolean(name).value_or(false)) refuse(fields.path_of(name), std::string(why));
}

void accept_only_empty(Fields& fields, std::string_view name) {
  const ordered_json* value = fields.raw(name);
  if (value && !(value->is_structured() && value->empty())) refuse(fields.path_of(name), "is not supported");
}

// Some programs send all the settings that they know, switched off.
void accept_only_off(Fields& fields, std::string_view name, double off) {
  const ordered_json* value = fields.raw(name);
  if (value && *value != off) refuse(fields.path_of(name), cat("is not supported; only ", off, ", which is off, is"));
}

// What would change the answer. All else that is not known is ignored by name.
void refuse_unsupported(Fields& fields) {
  accept_only_false(fields, "return_hidden_states", "hidden states are not given out");
  accept_only_false(fields, "use_beam_search", "is not supported");
  constexpr const char* kRefused[] = {"lora_path",      "lora",           "session_params",    "custom_logit_processor",
                                      "custom_params",  "stop_regex",     "logits_processors", "structural_tag",
                                      "bad_words",      "prompt_embeds",  "allowed_token_ids", "truncate_prompt_tokens",
                                      "bootstrap_host", "bootstrap_port", "bootstrap_room",    "prompt_logprobs"};
  for (const char* name : kRefused) accept_only_empty(fields, name);
  constexpr std::pair<const char*, double> kOff[] = {
      {"mirostat", 0},        {"typical_p", 1},      {"tfs_z", 1},          {"top_a", 0},
      {"xtc_probability", 0}, {"dry_multiplier", 0}, {"dynatemp_range", 0}, {"length_penalty", 1}};
  for (const auto& [name, off] : kOff) accept_only_off(fields, name, off);
}

// --- streams

void read_stream(Fields& fields, CallSettings& settings) {
  settings.stream = fields.boolean("stream").value_or(false);
  auto options = fields.object("stream_options");
  if (!options) return;
  if (!settings.stream) return fields.no_effect("stream_options", "is only allowed when stream is true");
  settings.stream_usage = options->boolean("include_usage").value_or(false);
  options->ignore("include_obfuscation");
  options->finish();
}

// --- the rest

TextRules read_text_rules(Fields& fields) {
  TextRules rules;
  rules.stops = read_stops(fields);
  rules.skip_special = fields.boolean("skip_special_tokens").value_or(true);
  const auto keep_stop = fields.boolean("no_stop_trim"), vllms_name = fields.boolean("include_stop_str_in_output");
  rules.keep_stop = (keep_stop ? keep_stop : vllms_name).value_or(false);
  return rules;
}

// llama.cpp's name.
void read_repeat_penalty(Fields& fields, ops::SamplingParams& sampling) {
  const auto penalty = fields.number("repeat_penalty", 0.01, 100);
  if (penalty && !fields.has("repetition_penalty")) sampling.repetition_penalty = static_cast<float>(*penalty);
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
  settings.grammars = std::make_shared<grammar::CallGrammars>(service.grammars());
  settings.model = read_model(fields, service);
  settings.rid = fields.string("rid", kMostNameBytes).value_or("");
  settings.choices = read_choices(fields, service);
  read_stream(fields, settings);
  read_sampling(fields, service, settings.request);
  read_repeat_penalty(fields, settings.request.sampling);
  settings.key = caller.key;
  settings.request.priority = read_priority(fields, caller);
  settings.request.speculative = fields.boolean("speculative").value_or(true);
  settings.request.salt = joined_salt(caller, read_salt(fields));
  settings.text = read_text_rules(fields);
  settings.constraint = read_openai_constraint(fields);
  ignore_harmless(fields);
  refuse_unsupported(fields);
  return settings;
}

int32_t read_max_tokens(Fields& fields, int32_t least, int32_t otherwise) {
  std::optional<int64_t> limit;
  bool given = false;
  for (const std::string_view name : kMaxTokensNames) {
    given |= fields.is_there(name);
    const auto one = fields.integer(name, -1, kMostTokens);
    if (one && *one >= 0 && *one < least)
      refuse(fields.path_of(name), cat("expected at least ", least, ", or -1 for no limit"));
    if (!limit) limit = one;
  }
  return limit ? static_cast<int32_t>(*limit) : given ? -1 : otherwise;
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

void note_unenforced(const CallSettings& settings, Ignored& ignored) {
  if (settings.constraint) note_unenforced(*settings.constraint, *settings.grammars, ignored);
}

void add_jobs(std::vector<JobSpec>& jobs, const CallSettings& settings, const engine::Request& request,
              const std::string& rid) {
  for (int32_t choice = 0; choice < settings.choices; ++choice) {
    JobSpec job{.rid = jobs.empty() ? rid : cat(rid, "_", jobs.size()),
                .request = request,
                .text = settings.text,
                .key = settings.key};
    job.request.sampling.seed += static_cast<uint64_t>(choice);
    if (settings.constraint)  // each text has a mask of its own
      constrain(*settings.constraint, *settings.grammars, job.request);
    jobs.push_back(std::move(job));
  }
}

}  // namespace quire::serve
