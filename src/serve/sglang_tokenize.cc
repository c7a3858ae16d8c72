#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/call_limits.h"
#include "serve/fields.h"
#include "serve/json_text.h"
#include "serve/request_reader.h"
#include "serve/sglang.h"
#include "serve/watched_exchange.h"

namespace quire::serve {

namespace {

using nlohmann::ordered_json;

constexpr size_t kMostTexts = 1024;

// vLLM and SGLang call it prompt, others text.
const char* name_of_text(const Fields& fields) {
  if (fields.has("prompt") == fields.has("text"))
    throw ApiError(400, "expected either prompt or text, and not both", "prompt");
  return fields.has("prompt") ? "prompt" : "text";
}

// As text at once: as JSON values ids take some twenty times the memory.
void append_list(std::string& json, const std::vector<int32_t>& ids) {
  json += '[';
  for (size_t i = 0; i < ids.size(); ++i) json.append(i > 0 ? "," : "").append(std::to_string(ids[i]));
  json += ']';
}

std::string decoded(const std::vector<int32_t>& tokens, bool skip_special, const Service& service) {
  const int32_t vocabulary = service.tokenizer().size();
  for (const int32_t token : tokens)
    if (token >= vocabulary) refuse("tokens", cat("token ", token, " is not one of the vocabulary's ", vocabulary));
  return service.tokenizer().decode(tokens, skip_special);
}

ordered_json decoded_lists(const ordered_json& lists, bool skip_special, const Service& service) {
  if (lists.size() > kMostTexts) throw ApiError(400, cat("tokens: expected at most ", kMostTexts, " lists"), "tokens");
  ordered_json texts = ordered_json::array();
  for (const ordered_json& list : lists) {
    const std::string name = cat("tokens[", texts.size(), "]");
    const ordered_json one = {{name, list}};
    texts.push_back(decoded(Fields(one, "").token_ids(name, SIZE_MAX), skip_special, service));
  }
  return texts;
}

}  // namespace

void tokenize(std::shared_ptr<http::Exchange> exchange, Service& service) {
  const ordered_json body = body_of(exchange->request());
  Ignored ignored(service.options().strict_fields);
  Fields fields(body, "", &ignored);
  const char* name = name_of_text(fields);
  const std::vector<std::string> texts = fields.strings(name, kMostTexts, SIZE_MAX);
  const bool is_list = fields.raw(name)->is_array();
  const bool special = fields.boolean("add_special_tokens").value_or(true);
  fields.ignore("model");
  fields.finish();
  note(*exchange, [&](Answered& so_far) { so_far.ignored = ignored.header(); });

  std::string tokens, counts;
  for (const std::string& text : texts) {
    const auto ids = encoded_text(text, {.add_special = special, .parse_special = true}, service, name);
    if (!counts.empty()) counts += ',', tokens += ',';
    append_list(tokens, ids);
    counts += std::to_string(ids.size());
  }
  const auto listed = [&](const std::string& all) { return is_list ? cat("[", all, "]") : all; };
  exchange->respond({.body = cat(R"({"tokens":)", listed(tokens), R"(,"count":)", listed(counts),
                                 R"(,"max_model_len":)", service.engine_options().context, "}")});
}

void detokenize(std::shared_ptr<http::Exchange> exchange, Service& service) {
  const ordered_json body = body_of(exchange->request());
  Ignored ignored(service.options().strict_fields);
  Fields fields(body, "", &ignored);
  const ordered_json& tokens = fields.required("tokens");
  const bool skip_special = fields.boolean("skip_special_tokens").value_or(true);
  fields.ignore("model");
  fields.finish();
  note(*exchange, [&](Answered& so_far) { so_far.ignored = ignored.header(); });

  const bool is_list = tokens.is_array() && !tokens.empty() && tokens[0].is_array();
  respond_json(
      *exchange,
      {{"text", is_list ? decoded_lists(tokens, skip_special, service)
                        : ordered_json(decoded(fields.token_ids("tokens", SIZE_MAX), skip_special, service))}});
}

}  // namespace quire::serve
