#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/call_limits.h"
#include "serve/json_text.h"
#include "serve/openai.h"
#include "serve/openai_answer.h"
#include "serve/openai_logprobs.h"
#include "serve/openai_prompts.h"
#include "serve/openai_request.h"
#include "serve/request_reader.h"
#include "serve/watched_exchange.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

// --- the body, read

constexpr int32_t kUsualTokens = 16;  // as OpenAI has it

void refuse_best_of(Fields& fields, int32_t choices) {
  const auto best_of = fields.integer("best_of", 1, std::numeric_limits<int32_t>::max());
  if (best_of && *best_of != 1 && *best_of != choices)
    throw ApiError(400, "best_of: choosing among more answers than n is not supported", "best_of");
}

size_t most_prompts(const CallSettings& settings, const Service& service) {
  return static_cast<size_t>(service.options().most_choices / settings.choices);
}

struct CompletionBody {
  CallSettings settings;  // its request has the limits
  std::vector<Prompt> prompts;
  bool echo = false;  // the prompt is the first part of the text
};

CompletionBody read_completion(const ordered_json& json, const Service& service, const Caller& caller) {
  Ignored ignored(service.options().strict_fields);
  Fields fields(json, "", &ignored);
  CompletionBody body{.settings = read_settings(fields, service, caller), .prompts = {}};
  engine::Request& request = body.settings.request;
  request.top_logprobs = static_cast<int32_t>(fields.integer("logprobs", 0, kMostTopLogprobs).value_or(-1));
  request.max_new_tokens = read_max_tokens(fields, 0, kUsualTokens);
  limit_answer(request, fields, kMaxTokensNames, service);
  body.echo = fields.boolean("echo").value_or(false);
  if (body.echo && request.top_logprobs >= 0) request.prompt_logprobs_from = 0;
  refuse_best_of(fields, body.settings.choices);
  fields.refuse("suffix", "filling in before a suffix is not supported");
  const ordered_json& prompt = fields.required("prompt");
  fields.finish();
  note_unenforced(body.settings, ignored);
  body.settings.ignored = ignored.header();

  body.prompts = read_prompts(prompt, {"prompt", most_prompts(body.settings, service), true}, service);
  for (const Prompt& each : body.prompts) check_prompt_length(each.ids.size(), service, "prompt");
  return body;
}

// --- its answer

struct Choice {
  std::optional<CompletionLogprobs> logprobs;  // that were not sent yet
  std::string text;                            // that was not sent yet, the prompt first if it is echoed
  std::optional<End> end = {};
};

class TextAnswer final : public OpenAiAnswer {
 public:
  TextAnswer(std::shared_ptr<http::Exchange> exchange, Terms terms, const CompletionBody& body, const Service& service)
      : OpenAiAnswer(std::move(exchange), std::move(terms)), rules_(body.settings.text) {
    const text::Tokenizer& tokenizer = service.tokenizer();
    for (const Prompt& prompt : body.prompts)
      for (int32_t i = 0; i < body.settings.choices; ++i) {
        Choice choice;
        if (body.settings.request.top_logprobs >= 0) choice.logprobs.emplace(tokenizer, rules_.skip_special);
        if (body.echo) choice.text = prompt.text ? *prompt.text : tokenizer.decode(prompt.ids, rules_.skip_special);
        choices_.push_back(std::move(choice));
      }
  }

 private:
  void take(size_t index, Progress& progress, std::string& part) override {
    Choice& choice = choices_[index];
    choice.end = progress.end;
    choice.text += progress.text;
    if (choice.logprobs) {
      drop_stop_token(progress, rules_);
      choice.logprobs->add_prompt(progress.prompt_logprobs);
      choice.logprobs->add(progress.tokens);
    }
    if (!terms().stream) return;
    if (!choice.text.empty()) append_text(part, index);
    if (choice.end) append_end(part, index);
  }

  void append_text(std::string& part, size_t index) {
    Choice& choice = choices_[index];
    std::string text = R"("text":")";
    append_escaped(text, std::exchange(choice.text, {}));
    chunks().append(part, index, text.append("\""), taken_logprobs(choice));
  }

  void append_end(std::string& part, size_t index) {
    Choice& choice = choices_[index];
    chunks().append_last(part, index, R"("text":"")", taken_logprobs(choice),
                         cat("\"", finish_reason(*choice.end), "\""),
                         cat(R"(,"matched_stop":)", matched_stop(*choice.end)));
  }

  static std::string taken_logprobs(Choice& choice) {
    return choice.logprobs && !choice.logprobs->empty() ? dumped(choice.logprobs->take()) : "null";
  }

  std::string choices() override {
    ordered_json all = ordered_json::array();
    for (Choice& choice : choices_) {
      ordered_json one = {{"index", all.size()}, {"text", std::move(choice.text)}, {"logprobs", nullptr}};
      if (choice.logprobs) one["logprobs"] = choice.logprobs->take();
      one["finish_reason"] = finish_reason(*choice.end);
      one["matched_stop"] = ordered_json::parse(matched_stop(*choice.end));
      all.push_back(std::move(one));
    }
    return dumped(all);
  }

  const TextRules rules_;
  std::vector<Choice> choices_;
};

}  // namespace

void completions(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller) {
  const CompletionBody body = read_completion(body_of(exchange->request()), service, caller);
  const CallSettings& settings = body.settings;
  note(*exchange, [&](Answered& so_far) { so_far.ignored = settings.ignored; });
  const std::string id = settings.rid.empty() ? service.new_id("cmpl-") : settings.rid;
  std::vector<JobSpec> jobs;
  LogprobCount logprobs(service, "logprobs");
  for (const Prompt& prompt : body.prompts) {
    engine::Request request = settings.request;
    request.prompt = prompt.ids;
    logprobs.add(request, settings.choices);
    add_jobs(jobs, settings, request, id);
  }
  OpenAiAnswer::Terms terms{.head = new_head(id, "text_completion", settings.model),
                            .stream = settings.stream,
                            .stream_usage = settings.stream_usage,
                            .choices = jobs.size(),
                            .choices_of_a_prompt = static_cast<size_t>(settings.choices),
                            .logprobs = logprobs.share()};
  std::make_shared<TextAnswer>(std::move(exchange), std::move(terms), body, service)->run(std::move(jobs), service);
}

}  // namespace quire::serve
