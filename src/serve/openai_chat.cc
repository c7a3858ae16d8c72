#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serve/call_limits.h"
#include "serve/openai.h"
#include "serve/openai_answer.h"
#include "serve/openai_chat_choice.h"
#include "serve/openai_chat_request.h"
#include "serve/request_reader.h"
#include "serve/watched_exchange.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

class ChatAnswer final : public OpenAiAnswer {
 public:
  ChatAnswer(std::shared_ptr<http::Exchange> exchange, Terms terms, const ChatBody& body, const Service& service)
      : OpenAiAnswer(std::move(exchange), std::move(terms)) {
    const ChatChoice::Terms choice{.tokenizer = service.tokenizer(),
                                   .rules = body.settings.text,
                                   .logprobs = body.settings.request.top_logprobs >= 0,
                                   .new_call_id = call_ids(body, service),
                                   .reasoning = body.reasoning,
                                   .stream_reasoning = body.stream_reasoning};
    for (int32_t i = 0; i < body.settings.choices; ++i)
      choices_.push_back(std::make_unique<ChatChoice>(choices_.size(), choice, parser_for(body)));
  }

 private:
  static std::function<std::string()> call_ids(const ChatBody& body, const Service& service) {
    constexpr size_t kShort = 9;
    if (body.short_call_ids) return [&service] { return service.new_id("").substr(0, kShort); };
    return [&service] { return service.new_id("call_"); };
  }

  static std::unique_ptr<ToolParser> parser_for(const ChatBody& body) {
    if (!body.tool_form) return nullptr;
    return std::make_unique<ToolParser>(*body.tool_form, body.tool_names, body.most_calls);
  }

  void take(size_t choice, Progress& progress, std::string& part) override {
    if (terms().stream)
      choices_[choice]->stream(progress, chunks(), part);
    else
      choices_[choice]->collect(progress);
  }

  int64_t reasoning_tokens() const override {
    int64_t tokens = 0;
    for (const auto& choice : choices_) tokens += choice->reasoning_tokens();
    return tokens;
  }

  std::string choices() override {
    std::string all = "[";
    for (const auto& choice : choices_) all.append(all.size() > 1 ? "," : "").append(choice->json());
    return all += "]";
  }

  std::vector<std::unique_ptr<ChatChoice>> choices_;
};

}  // namespace

void chat_completions(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller) {
  const ChatBody body = read_chat(body_of(exchange->request()), service, caller);
  const CallSettings& settings = body.settings;
  note(*exchange, [&](Answered& so_far) { so_far.ignored = settings.ignored; });
  const std::string id = settings.rid.empty() ? service.new_id("chatcmpl-") : settings.rid;
  LogprobCount logprobs(service, "logprobs");
  logprobs.add(settings.request, settings.choices);
  std::vector<JobSpec> jobs;
  add_jobs(jobs, settings, settings.request, id);
  OpenAiAnswer::Terms terms{
      .head = new_head(id, settings.stream ? "chat.completion.chunk" : "chat.completion", settings.model),
      .stream = settings.stream,
      .stream_usage = settings.stream_usage,
      .choices = jobs.size(),
      .choices_of_a_prompt = jobs.size(),
      .logprobs = logprobs.share()};
  std::make_shared<ChatAnswer>(std::move(exchange), std::move(terms), body, service)->run(std::move(jobs), service);
}

}  // namespace quire::serve
