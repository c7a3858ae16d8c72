#include "serve/sglang_generate_request.h"

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/call_limits.h"
#include "serve/constraint.h"
#include "serve/fields.h"
#include "serve/request_reader.h"

namespace quire::serve {

namespace {

using nlohmann::ordered_json;
constexpr int32_t kDefaultNewTokens = 128;  // SGLang's

// --- prompts

struct Prompts {
  std::vector<std::vector<int32_t>> tokens;
  bool is_list;
};

Prompts read_texts(Fields& fields, const Service& service, size_t most) {
  Prompts prompts{.tokens = {}, .is_list = fields.raw("text")->is_array()};
  for (const std::string& text : fields.strings("text", most, std::numeric_limits<size_t>::max())) {
    check_text_length(text, service, "text");
    prompts.tokens.push_back(encoded_text(text, {.add_special = true, .parse_special = true}, service, "text"));
  }
  return prompts;
}

// Tokens that stand at a place of their own in a list, with a name that says where.
std::vector<int32_t> token_ids_at(const ordered_json& list, const std::string& name, size_t index, size_t most) {
  const std::string place = cat(name, "[", index, "]");
  const ordered_json one = {{place, list[index]}};
  return Fields(one, "").token_ids(place, most);
}

bool is_list_of_lists(const ordered_json& value) { return value.is_array() && !value.empty() && value[0].is_array(); }

Prompts read_input_ids(Fields& fields, const Service& service, size_t most) {
  const ordered_json& ids = fields.required("input_ids");
  constexpr size_t kAnyNumber = std::numeric_limits<size_t>::max();  // the engine refuses what does not fit
  if (!is_list_of_lists(ids)) {
    Prompts prompt{.tokens = {fields.token_ids("input_ids", kAnyNumber)}, .is_list = false};
    check_token_ids(prompt.tokens[0], service, "input_ids");
    return prompt;
  }
  if (ids.size() > most) throw ApiError(400, cat("input_ids: expected at most ", most, " texts"), "input_ids");
  Prompts prompts{.tokens = {}, .is_list = true};
  for (size_t i = 0; i < ids.size(); ++i) {
    prompts.tokens.push_back(token_ids_at(ids, "input_ids", i, kAnyNumber));
    check_token_ids(prompts.tokens[i], service, cat("input_ids[", i, "]"));
  }
  return prompts;
}

Prompts read_prompts(Fields& fields, const Service& service) {
  const auto most = static_cast<size_t>(service.options().most_choices);
  if (fields.has("text") == fields.has("input_ids"))
    throw ApiError(400, "expected either text or input_ids, and not both", "text");
  Prompts prompts = fields.has("text") ? read_texts(fields, service, most) : read_input_ids(fields, service, most);
  if (prompts.tokens.empty()) throw ApiError(400, "text: expected at least one", "text");
  return prompts;
}

// --- options that stand once for all texts, or in a list with one for each

const ordered_json& of_text(const ordered_json& value, bool is_list, size_t text, size_t texts,
                            const std::string& name) {
  if (!is_list) return value;
  if (value.size() != texts)
    throw ApiError(400, cat(name, ": expected one for each of ", texts, " texts, got ", value.size()), name);
  return value[text];
}

// The fields of one text, as if they stood in a call of their own.
ordered_json options_of(Fields& fields, size_t text, size_t texts) {
  ordered_json options = ordered_json::object();
  for (const char* name : {"return_logprob", "logprob_start_len", "top_logprobs_num", "cache_salt", "extra_key"})
    if (const ordered_json* value = fields.raw(name))
      options[name] = of_text(*value, value->is_array(), text, texts, name);
  if (const ordered_json* ids = fields.raw("token_ids_logprob"))
    options["token_ids_logprob"] = of_text(*ids, is_list_of_lists(*ids), text, texts, "token_ids_logprob");
  return options;
}

// --- one text

void read_logprobs(Fields& options, const Service& service, GenerateText& text) {
  engine::Request& request = text.job.request;
  const auto length = static_cast<int64_t>(request.prompt.size());
  const bool wanted = options.boolean("return_logprob").value_or(false);
  const int64_t from = options.integer("logprob_start_len", -1, length).value_or(-1);
  const int64_t top = options.integer("top_logprobs_num", 0, kMostGenerateTopLogprobs).value_or(0);
  std::vector<int32_t> ids = options.token_ids("token_ids_logprob", kMostLogprobIds);
  check_token_ids(ids, service, "token_ids_logprob");
  if (!wanted) return;
  text.logprobs = {.wanted = true, .top = top > 0, .ids = !ids.empty(), .texts = text.logprobs.texts};
  request.top_logprobs = static_cast<int32_t>(top);
  request.logprob_ids = std::move(ids);
  request.prompt_logprobs_from = from < length ? static_cast<int32_t>(from) : -1;
}

std::string salt_of(Fields& options, const Caller& caller) {
  constexpr size_t kMostSaltBytes = 256;
  const std::optional<std::string> salt = options.string("cache_salt", kMostSaltBytes);
  const std::optional<std::string> key = options.string("extra_key", kMostSaltBytes);
  // Put together, two could look like one that somebody else chose.
  if (salt && key) throw ApiError(400, "expected either cache_salt or extra_key, and not both", "extra_key");
  return joined_salt(caller, salt ? *salt : key.value_or(""));
}

// An explicit null means no limit but the context's, as in SGLang.
int32_t new_tokens(Fields& params, const ordered_json& object) {
  constexpr auto kMost = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> count = params.integer("max_new_tokens", 0, kMost);
  return count ? static_cast<int32_t>(*count) : object.contains("max_new_tokens") ? -1 : kDefaultNewTokens;
}

struct Sampling {  // what read_params() finds beside the job
  int64_t choices;
  std::optional<Constraint> constraint;
};

// All of it is about the answer, so what is not known is refused, as SGLang does.
Sampling read_params(const ordered_json& object, const Service& service, JobSpec& job) {
  Fields params(object, "sampling_params");
  engine::Request& request = job.request;
  read_sampling(params, service, request);
  if (const auto seed = params.integer("sampling_seed", 0, std::numeric_limits<int64_t>::max()))
    request.sampling.seed = static_cast<uint64_t>(*seed);
  request.max_new_tokens = new_tokens(params, object);
  constexpr std::string_view kNames[] = {"max_new_tokens"};
  limit_answer(request, params, kNames, service);
  job.text.stops = read_stops(params);
  job.text.skip_special = params.boolean("skip_special_tokens").value_or(true);
  job.text.keep_stop = params.boolean("no_stop_trim").value_or(false);
  if (!params.boolean("spaces_between_special_tokens").value_or(true))
    params.refuse("spaces_between_special_tokens", "only true is supported");
  for (const char* name : {"stop_regex", "structural_tag", "custom_params"}) params.refuse(name, "is not supported");
  params.ignore("stream_interval");
  Sampling sampling{.choices = params.integer("n", 1, service.options().most_choices).value_or(1),
                    .constraint = read_sglang_constraint(params)};
  params.finish();
  if (sampling.constraint && sampling.constraint->source.kind == grammar::Kind::json_schema)
    sampling.constraint->source.loose = !service.options().strict_fields;
  return sampling;
}

// --- the whole call

// What has no meaning here: for logs and for deployments that quire does not have.
constexpr const char* kIgnored[] = {"model",         "log_metrics",        "background",           "no_logs",
                                    "return_bytes",  "data_parallel_rank", "routed_dp_rank",       "conversation_id",
                                    "label",         "modalities",         "routing_key",          "session_id",
                                    "custom_labels", "received_time",      "external_trace_header"};
constexpr const char* kRefused[] = {"input_embeds",   "image_data",     "video_data",     "audio_data",
                                    "session_params", "lora_id",        "lora_path",      "custom_logit_processor",
                                    "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key"};
constexpr const char* kRefusedUnlessFalse[] = {"return_hidden_states", "return_entropy", "return_routed_experts",
                                               "return_prompt_token_ids"};

void refuse_what_is_missing_here(Fields& fields) {
  for (const char* name : kIgnored) fields.ignore(name);
  for (const char* name : kRefused) fields.refuse(name, "is not supported");
  for (const char* name : kRefusedUnlessFalse)
    if (fields.boolean(name).value_or(false)) fields.refuse(name, "is not supported");
}

// The names of all answers, in order. One name for several becomes the beginning of theirs, so that it aborts them all.
std::vector<std::string> read_rids(Fields& fields, size_t texts, size_t choices, bool is_list, const Service& service) {
  const std::vector<std::string> given = fields.strings("rid", texts, kMostRidBytes);
  for (const std::string& rid : given)
    if (rid.empty()) throw ApiError(400, "rid: expected at least one character", "rid");
  const ordered_json* rid = fields.raw("rid");
  const bool one_each = rid && rid->is_array();
  if (one_each && given.size() != texts)
    throw ApiError(400, cat("rid: expected one for each of ", texts, " texts, got ", given.size()), "rid");

  const std::string name = given.empty() ? service.new_id("") : given[0];
  if (!is_list) return {name};
  std::vector<std::string> rids;
  for (size_t i = 0; i < texts * choices; ++i)
    if (!one_each)
      rids.push_back(cat(name, "_", i));
    else
      rids.push_back(choices == 1 ? given[i] : cat(given[i / choices], "_", i % choices));
  return rids;
}

class GenerateReader {
 public:
  GenerateReader(const ordered_json& body, const Service& service, const Caller& caller)
      : ignored_(service.options().strict_fields),
        fields_(body, "", &ignored_),
        service_(service),
        caller_(caller),
        logprobs_(service, "return_logprob") {}

  GenerateBody read() {
    Prompts prompts = read_prompts(fields_, service_);
    GenerateBody body{.is_list = prompts.is_list, .stream = fields_.boolean("stream").value_or(false), .texts = {}};
    texts_ = prompts.tokens.size();
    for (size_t i = 0; i < texts_; ++i) add_texts(std::move(prompts.tokens[i]), i, body);
    body.is_list |= choices_ > 1;
    const auto rids = read_rids(fields_, texts_, static_cast<size_t>(choices_), body.is_list, service_);
    for (size_t i = 0; i < rids.size(); ++i) body.texts[i].job.rid = rids[i];
    refuse_what_is_missing_here(fields_);
    fields_.finish();
    body.ignored = ignored_.header();
    body.logprobs = logprobs_.share();
    return body;
  }

 private:
  const ordered_json& params_of(size_t text) {
    static const ordered_json kNone = ordered_json::object();
    const ordered_json* params = fields_.raw("sampling_params");
    return params ? of_text(*params, params->is_array(), text, texts_, "sampling_params") : kNone;
  }

  GenerateText read_text(std::vector<int32_t> prompt, size_t index) {
    GenerateText text;
    text.logprobs.texts = fields_.boolean("return_text_in_logprobs").value_or(false);
    engine::Request& request = text.job.request;
    request.prompt = std::move(prompt);
    request.priority = read_priority(fields_, caller_);
    request.speculative = fields_.boolean("speculative").value_or(true);
    text.job.key = caller_.key;
    const ordered_json object = options_of(fields_, index, texts_);
    Fields options(object, "");
    request.salt = salt_of(options, caller_);
    read_logprobs(options, service_, text);
    return text;
  }

  // Of one prompt, as many as n says.
  void add_texts(std::vector<int32_t> prompt, size_t index, GenerateBody& body) {
    GenerateText text = read_text(std::move(prompt), index);
    const Sampling sampling = read_params(params_of(index), service_, text.job);
    check_choices(sampling.choices, index);
    if (sampling.constraint) note_unenforced(*sampling.constraint, grammars_, ignored_);
    logprobs_.add(text.job.request, choices_);
    if (body.stream) logprobs_.check_repeated(text.job.request);
    for (int64_t choice = 0; choice < choices_; ++choice) {
      GenerateText& added = body.texts.emplace_back(text);
      added.job.request.sampling.seed += static_cast<uint64_t>(choice);
      if (sampling.constraint)  // each has its own state
        constrain(*sampling.constraint, grammars_, added.job.request);
    }
  }

  void check_choices(int64_t choices, size_t text) {
    if (text > 0 && choices != choices_)
      throw ApiError(400, "sampling_params.n: expected the same for all texts", "sampling_params.n");
    choices_ = choices;
    const int32_t most = service_.options().most_choices;
    if (static_cast<int64_t>(texts_) * choices > most)
      throw ApiError(400, cat("sampling_params.n: expected at most ", most, " answers in one call"),
                     "sampling_params.n");
  }

  Ignored ignored_;
  Fields fields_;
  const Service& service_;
  const Caller& caller_;
  LogprobCount logprobs_;
  grammar::CallGrammars grammars_{service_.grammars()};
  size_t texts_ = 0;
  int64_t choices_ = 1;
};

}  // namespace

GenerateBody read_generate(const ordered_json& body, const Service& service, const Caller& caller) {
  return GenerateReader(body, service, caller).read();
}

}  // namespace quire::serve
