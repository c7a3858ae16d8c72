#include "serve/chat_prompt.h"

#include <string>
#include <utility>

#include "serve/api_error.h"
#include "serve/call_limits.h"
#include "serve/chat_marks.h"
#include "serve/chat_tools_as_text.h"
#include "serve/openai_request.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

// The last message's text is put after the generation prompt: templates would end its turn.
std::string take_beginning(ordered_json& messages) {
  const ordered_json& last = messages.back();
  if (last["role"] != "assistant" || !last["content"].is_string())
    throw ApiError(400, "continue_final_message: the last message is not the assistant's text",
                   "continue_final_message");
  std::string beginning = last["content"].get<std::string>();
  messages.erase(messages.size() - 1);
  return beginning;
}

ordered_json context_of(ChatInput input, bool knows) {
  ordered_json context = std::move(input.variables);
  context["messages"] = std::move(input.messages);
  if (knows && !input.tools.is_null()) context["tools"] = std::move(input.tools);
  return context;
}

}  // namespace

std::string_view chat_template_of(const Service& service) {
  const std::string& given = service.options().chat_template;
  if (!given.empty()) return given;
  const auto& own = service.tokenizer().vocabulary().chat_template;
  return own ? std::string_view(*own) : std::string_view();
}

std::vector<int32_t> chat_prompt(ChatInput input, const Service& service) {
  const bool continues = input.continue_final_message, prompts = continues || input.add_generation_prompt;
  const bool knows = knows_tools(chat_template_of(service));
  if (!knows) write_tools_as_text(input.messages, input.tools);
  std::string beginning = continues ? take_beginning(input.messages) : "";

  ordered_json context = context_of(std::move(input), knows);
  context["beginning"] = std::move(beginning);
  Marks marks(service.tokenizer().vocabulary());
  marks.mark(context);
  beginning = context["beginning"].get<std::string>();
  context.erase("beginning");
  context["add_generation_prompt"] = prompts;

  const Marks::Text prompt = marks.unmarked(service.render(std::move(context)) + beginning);
  check_text_length(prompt.text, service, "messages");
  return encoded_text(prompt.text, {.add_special = false, .parse_special = true, .never_special = prompt.never_special},
                      service, "messages");
}

}  // namespace quire::serve
