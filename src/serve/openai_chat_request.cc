#include "serve/openai_chat_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"
#include "serve/call_limits.h"
#include "serve/chat_messages.h"
#include "serve/chat_prompt.h"
#include "serve/request_reader.h"
#include "serve/tool_choice.h"
#include "serve/tool_grammar.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostVariableBytes = 16 << 10;

int32_t read_top_logprobs(Fields& fields) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMostTopLogprobs);
  if (top.value_or(0) > 0 && !wanted) refuse("top_logprobs", "needs logprobs to be true");
  return wanted ? static_cast<int32_t>(top.value_or(0)) : -1;
}

// Variables of the template, except those that are not the caller's to set.
ordered_json read_variables(Fields& fields) {
  ordered_json variables = ordered_json::object();
  if (const ordered_json* given = fields.raw("chat_template_kwargs")) {
    const std::string path = fields.path_of("chat_template_kwargs");
    if (!given->is_object()) refuse(path, "expected an object");
    if (given->dump(-1, ' ', false, ordered_json::error_handler_t::replace).size() > kMostVariableBytes)
      refuse(path, cat("expected at most ", kMostVariableBytes, " bytes"));
    for (const char* name : {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"})
      if (given->contains(name)) refuse(cat(path, ".", name), "cannot be set here");
    variables = *given;
  }
  if (const auto thinking = fields.boolean("enable_thinking")) variables.emplace("enable_thinking", *thinking);
  if (const auto effort = fields.string("reasoning_effort", 64)) variables["reasoning_effort"] = *effort;
  return variables;
}

void refuse_unsupported_in_chat(Fields& fields) {
  for (const std::string& modality : fields.strings("modalities", 8, 64))
    if (modality != "text") refuse("modalities", "only text is supported");
  if (fields.string("verbosity", 64).value_or("medium") != "medium") fields.no_effect("verbosity", "is not supported");
  fields.no_effect("prediction", "predicted outputs are not supported");
  fields.refuse("audio", "audio is not supported");
  fields.refuse("documents", "is not supported");
  fields.refuse("chat_template", "cannot be set by a call");
  fields.refuse("web_search_options", "searching the web is not supported");
  fields.refuse("functions", "is an older form of tools and not supported");
  fields.refuse("function_call", "is an older form of tool_choice and not supported");
}

bool is_special(std::string_view piece, const text::Tokenizer& tokenizer) {
  const auto token = tokenizer.find(piece);
  return token && tokenizer.is_special(*token);
}

// How calls come: where the model may call, in its own form; where it must, in that of the grammar.
void plan_tools(const ToolPlan& tools, const Service& service, ChatBody& body, Ignored& ignored) {
  if (tools.mode == ToolPlan::Mode::none) return;
  CallSettings& settings = body.settings;
  const ToolForm& own_form = tool_form(service.options().tool_call_parser, chat_template_of(service));
  const bool must = tools.mode == ToolPlan::Mode::must_call;
  if (must && settings.constraint)
    refuse(settings.constraint->field, "cannot be combined with a tool_choice that forces a call");
  if (settings.constraint) return;  // the text has that form, and no other
  body.tool_form = must ? &kArrayForm : &own_form;
  body.tool_names = names_of(tools.functions);
  body.most_calls = tools.only_one ? 1 : std::numeric_limits<int>::max();
  body.short_call_ids = &own_form == &kMistralForm;
  if (must) {
    const std::string_view key = &own_form == &kLlama3Form ? "parameters" : "arguments";
    settings.constraint = {enforceable_tool_grammar(tools.functions, tools.only_one, key, *settings.grammars, ignored),
                           "tools"};
  } else if (is_special(own_form.opener, service.tokenizer())) {
    settings.text.skip_special = false;  // else nobody would see where calls begin
  }
}

// --- reasoning

std::string end_of_prompt(std::span<const int32_t> prompt, const text::Tokenizer& tokenizer) {
  constexpr size_t kTokens = 16;  // of a tag that is no token of its own, and white space after it
  return tokenizer.decode(prompt.last(std::min(prompt.size(), kTokens)), false);
}

void end_reasoning(std::vector<int32_t>& prompt, const text::Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode(cat("\n", kReasoningEnd, "\n\n"), {.add_special = false, .parse_special = true});
  prompt.insert(prompt.end(), ids.begin(), ids.end());
}

// Once the prompt is there.
void plan_reasoning(bool separate, bool continues, const Service& service, ChatBody& body) {
  CallSettings& settings = body.settings;
  const std::string& parser = service.options().reasoning_parser;
  const text::Tokenizer& tokenizer = service.tokenizer();
  const Reasoning reasoning = reasoning_after(parser, end_of_prompt(settings.request.prompt, tokenizer));
  if (settings.constraint) {
    if (reasoning == Reasoning::begun && !continues) end_reasoning(settings.request.prompt, tokenizer);
    return;
  }
  if (!separate || continues) return;
  body.reasoning = reasoning;
  if (is_special(kReasoningBegin, tokenizer) || is_special(kReasoningEnd, tokenizer))
    settings.text.skip_special = false;  // else nobody would see the tags
}

}  // namespace

ChatBody read_chat(const ordered_json& json, const Service& service, const Caller& caller) {
  Ignored ignored(service.options().strict_fields);
  Fields fields(json, "", &ignored);
  ChatBody body{.settings = read_settings(fields, service, caller)};
  engine::Request& request = body.settings.request;
  request.top_logprobs = read_top_logprobs(fields);
  request.max_new_tokens = read_max_tokens(fields, 1, -1);
  limit_answer(request, fields, kMaxTokensNames, service);
  const ToolPlan tools = read_tools(fields);
  ChatInput input{.messages = read_messages(fields.required("messages"), &ignored),
                  .tools = tools.tools,
                  .variables = read_variables(fields),
                  .add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true),
                  .continue_final_message = fields.boolean("continue_final_message").value_or(false)};
  const bool separate = fields.boolean("separate_reasoning").value_or(true);
  body.stream_reasoning = fields.boolean("stream_reasoning").value_or(true);
  refuse_unsupported_in_chat(fields);
  fields.finish();
  note_unenforced(body.settings, ignored);

  const bool continues = input.continue_final_message;
  const bool thinks = reasons(service.options().reasoning_parser, chat_template_of(service));
  body.settings.text.drop_first_space = !continues;
  plan_tools(tools, service, body, ignored);
  body.settings.ignored = ignored.header();
  if (thinks && body.settings.constraint) input.variables.emplace("enable_thinking", false);
  request.prompt = chat_prompt(std::move(input), service);
  if (thinks) plan_reasoning(separate, continues, service, body);
  check_prompt_length(request.prompt.size(), service, "messages");
  return body;
}

}  // namespace quire::serve
