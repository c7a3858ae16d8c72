#include "serve/openai_completions_request.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/call_limits.h"
#include "serve/request_reader.h"

namespace quire::serve {
namespace {

constexpr int32_t kUsualTokens = 16;  // as OpenAI has it

void refuse_best_of(Fields& fields, int32_t choices) {
  const auto best_of = fields.integer("best_of", 1, std::numeric_limits<int32_t>::max());
  if (best_of && *best_of != 1 && *best_of != choices)
    throw ApiError(400, "best_of: choosing among more answers than n is not supported", "best_of");
}

size_t most_prompts(const CallSettings& settings, const Service& service) {
  return static_cast<size_t>(service.options().most_choices / settings.choices);
}

}  // namespace

CompletionBody read_completion(const nlohmann::ordered_json& body, const Service& service, const Caller& caller) {
  Ignored ignored(service.options().strict_fields);
  Fields fields(body, "", &ignored);
  CompletionBody call{.settings = read_settings(fields, service, caller), .prompts = {}};
  engine::Request& request = call.settings.request;
  request.top_logprobs = static_cast<int32_t>(fields.integer("logprobs", 0, kMostTopLogprobs).value_or(-1));
  request.max_new_tokens = read_max_tokens(fields, 0, kUsualTokens);
  limit_answer(request, fields, kMaxTokensNames, service);
  call.echo = fields.boolean("echo").value_or(false);
  if (call.echo && request.top_logprobs >= 0) request.prompt_logprobs_from = 0;
  refuse_best_of(fields, call.settings.choices);
  fields.refuse("suffix", "filling in before a suffix is not supported");
  const nlohmann::ordered_json& prompt = fields.required("prompt");
  fields.finish();
  note_unenforced(call.settings, ignored);
  call.settings.ignored = ignored.header();

  call.prompts = read_prompts(prompt, {"prompt", most_prompts(call.settings, service), true}, service);
  for (const Prompt& each : call.prompts) check_prompt_length(each.ids.size(), service, "prompt");
  return call;
}

}  // namespace quire::serve
