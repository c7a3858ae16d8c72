#include "serve/openai_chat_request.h"

#include <limits>
#include <nlohmann/json.hpp>
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

int32_t read_max_tokens(Fields& fields) {
  const auto completion = fields.integer("max_completion_tokens", 1, kMostTokens);
  const auto older_name = fields.integer("max_tokens", 1, kMostTokens);
  return static_cast<int32_t>((completion ? completion : older_name).value_or(-1));
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
  if (const auto effort = fields.string("reasoning_effort", 64)) variables["reasoning_effort"] = *effort;
  return variables;
}

void refuse_unsupported(Fields& fields) {
  for (const std::string& modality : fields.strings("modalities", 8, 64))
    if (modality != "text") refuse("modalities", "only text is supported");
  const auto verbosity = fields.string("verbosity", 64);
  if (verbosity && *verbosity != "medium") refuse("verbosity", "is not supported");
  fields.refuse("audio", "audio is not supported");
  fields.refuse("prediction", "predicted outputs are not supported");
  fields.refuse("web_search_options", "searching the web is not supported");
  fields.refuse("functions", "is an older form of tools and not supported");
  fields.refuse("function_call", "is an older form of tool_choice and not supported");
}

bool is_special(std::string_view piece, const text::Tokenizer& tokenizer) {
  const auto token = tokenizer.find(piece);
  return token && tokenizer.is_special(*token);
}

// How calls come: where the model may call, in its own form; where it must, in that of the grammar.
void plan_tools(const ToolPlan& tools, const Service& service, ChatCall& call) {
  if (tools.mode == ToolPlan::Mode::none) return;
  CallSettings& settings = call.settings;
  const ToolForm& own_form = tool_form(service.options().tool_call_parser, chat_template_of(service));
  const bool must = tools.mode == ToolPlan::Mode::must_call;
  if (must && settings.constraint)
    refuse(settings.constraint_field, "cannot be combined with a tool_choice that forces a call");
  if (settings.constraint) return;  // the text has that form, and no other
  call.tool_form = must ? &kArrayForm : &own_form;
  call.tool_names = names_of(tools.functions);
  call.most_calls = tools.only_one ? 1 : std::numeric_limits<int>::max();
  call.short_call_ids = &own_form == &kMistralForm;
  if (must) {
    const std::string_view key = &own_form == &kLlama3Form ? "parameters" : "arguments";
    settings.constraint = enforceable_tool_grammar(tools.functions, tools.only_one, key, service.grammars());
    settings.constraint_field = "tools";
  } else if (is_special(own_form.opener, service.tokenizer())) {
    settings.text.skip_special = false;  // else nobody would see where calls begin
  }
}

}  // namespace

ChatCall read_chat(const ordered_json& body, const Service& service, const Caller& caller) {
  Fields fields(body, "");
  ChatCall call{.settings = read_settings(fields, service, caller)};
  engine::Request& request = call.settings.request;
  request.top_logprobs = read_top_logprobs(fields);
  request.max_new_tokens = read_max_tokens(fields);
  limit_answer(request, fields, {"max_completion_tokens", "max_tokens"}, service);
  const ToolPlan tools = read_tools(fields);
  ChatInput input{.messages = read_messages(fields.required("messages")),
                  .tools = tools.tools,
                  .variables = read_variables(fields),
                  .add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true),
                  .continue_final_message = fields.boolean("continue_final_message").value_or(false)};
  refuse_unsupported(fields);
  fields.finish();

  call.settings.text.drop_first_space = !input.continue_final_message;
  plan_tools(tools, service, call);
  request.prompt = chat_prompt(std::move(input), service);
  check_prompt_length(request.prompt.size(), service, "messages");
  return call;
}

}  // namespace quire::serve
