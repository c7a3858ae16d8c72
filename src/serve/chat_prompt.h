// From the messages of a chat to the tokens of the model's prompt, through the chat template. Only the template itself
// writes special tokens: what messages, tools and variables spell out stays text (chat_marks.h).
//
// Errors   ApiError 400: no template, what the template refuses (roles that do not take turns, say),
//          a last message that cannot be continued, a text that is too long to be tokenized.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "serve/service.h"

namespace quire::serve {

struct ChatInput {
  nlohmann::ordered_json messages;                                      // as read_messages() gives them
  nlohmann::ordered_json tools = nullptr;                               // as callers write them, or null
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  // more that the template may read
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer goes on where the last message, the assistant's, ends
};
std::vector<int32_t> chat_prompt(ChatInput input, const Service& service);

std::string_view chat_template_of(const Service& service);  // its source; "" when there is none

}  // namespace quire::serve
